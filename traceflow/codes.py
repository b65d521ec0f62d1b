"""Every stable code that traceflow prints: what it means and what to do about it.

TF1xx refuse an input or a request, TF2xx are findings about a step, TF3xx are remarks on the evidence,
TF9xx are failures of traceflow itself. A code keeps its meaning for good; one that is no longer used stays listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Code:
    """One stable code."""

    code: str
    title: str
    explanation: str
    remedy: str


_ALL = (
    # TF1xx, inputs and requests
    Code(
        "TF101",
        "input not found",
        "Nothing exists at the path that was given.",
        "Check the path; quote a pattern, so that the shell hands it on as it is.",
    ),
    Code(
        "TF102",
        "empty file",
        "The file has no content: the run that wrote it was probably stopped before it could finish.",
        "Record again and let the program end, or leave the file out.",
    ),
    Code(
        "TF103",
        "damaged file",
        "The file is cut short or is not what its first bytes say it is, and too little of it can be read.",
        "Copy it again from where it was recorded, or record again.",
    ),
    Code(
        "TF104",
        "no events",
        "The file is a well-formed trace in which nothing happened.",
        "Check that the profiler was active while the program worked.",
    ),
    Code(
        "TF105",
        "damaged compression",
        "The gzip stream ends early or its checksum is wrong.",
        "Copy the file again from where it was recorded.",
    ),
    Code(
        "TF106",
        "nothing to read",
        "The folder or pattern names no file that is a trace.",
        "Point at a trace file, or at a folder with one trace file per rank.",
    ),
    Code(
        "TF107",
        "unknown format",
        "The content is no trace that traceflow knows: Kineto JSON, XSpace, trace-event JSON, or an operation table.",
        "Export the trace in one of these formats.",
    ),
    Code(
        "TF108",
        "two files claim one rank",
        "Two traces of one capture say that they were recorded by the same rank.",
        "Leave one of them out, or correct the rank in the file name or in the metadata.",
    ),
    Code(
        "TF109",
        "a pickle that is no snapshot",
        "A snapshot of PyTorch's memory holds plain values. This pickle asks for something to be imported, which could "
        "run anything; nothing of it was executed.",
        "Do not unpickle the file by other means either, unless you know who wrote it.",
    ),
    Code(
        "TF110",
        "output exists",
        "The output is there already, and nothing is overwritten unless asked for.",
        "Give -f to replace it, or another name with -o.",
    ),
    Code(
        "TF111",
        "no such step",
        "The capture has no step of that number.",
        "`traceflow show summary` lists the steps.",
    ),
    Code(
        "TF112",
        "bad expression",
        "A pattern, factor or expression on the command line cannot be understood.",
        "Correct the part that the message names; patterns are Python regular expressions.",
    ),
    Code(
        "TF113",
        "framework not installed",
        "Recording needs the framework that computes, JAX or PyTorch; reading and explaining a trace does not.",
        "Install the extra: pip install 'traceflow-ml[jax]' or 'traceflow-ml[torch]'.",
    ),
    Code(
        "TF114",
        "output cannot be written",
        "The folder of the output does not exist, is read-only or is full.",
        "Choose another place with -o.",
    ),
    Code(
        "TF115",
        "recording failed",
        "The profiler could not start, or ended without a trace.",
        "Only one profiler can be active in a process: end the other one first.",
    ),
    Code(
        "TF116",
        "framework not known",
        "JAX and PyTorch are both there, and nothing tells which of them computes: no step gave one of their arrays.",
        "Pass framework='jax' or framework='torch' to record, or give an array to step.ready in the warm-up.",
    ),
    Code(
        "TF117",
        "nothing recorded",
        "The program ran, but in none of its processes was there a step: an optimizer of PyTorch that steps more than "
        "once, a step that is annotated for JAX, or else a program that JAX compiles.",
        "Let it run where traceflow is installed, for more steps than --warmup; or put traceflow.record round its loop.",
    ),
    Code(
        "TF118",
        "program not started",
        "What stands after -- is no program that can be run.",
        "Check its name and its permissions; to run a script, write: traceflow run -- python train.py.",
    ),
    Code(
        "TF119",
        "part of a recording not available",
        "Something that was asked for besides the trace could not be had. The manifest names it; the rest is complete.",
        "Let XLA dump from the start: enter record before JAX computes. Let nobody else observe or profile the process.",
    ),
    Code(
        "TF120",
        "unknown hardware",
        "No rates are known for hardware of that name.",
        "Use one of the names that the message lists, or `cpu`, which measures this machine.",
    ),
    Code(
        "TF121",
        "work and rate of different devices",
        "The work of some devices was to be divided by the rate of others: local FLOPs go with the rate of one device, "
        "global FLOPs with the rate of all of them, and any mix is wrong by the number of devices.",
        "Give both for the same devices.",
    ),
    Code(
        "TF122",
        "programs only",
        "The input holds compiled programs and no trace, so nothing is known of when anything ran.",
        "Ask for what the compiler arranged, or give the trace of a run together with its programs.",
    ),
    Code(
        "TF141",
        "no such mesh",
        "The sizes of a mesh's axes multiply to another number than there are devices.",
        "Give sizes whose product is the number of devices, each device once.",
    ),
    Code(
        "TF142",
        "no such axis",
        "A partition spec names an axis that the mesh does not have.",
        "Name the mesh's own axes.",
    ),
    Code(
        "TF143",
        "no such partition spec",
        "The text is no partition spec, or the spec has more dimensions than the array or uses an axis twice.",
        "Write it as P('data', None): one entry per dimension, an axis at most once.",
    ),
    Code(
        "TF144",
        "no such product",
        "The equation does not name two operands and a result as einsum does.",
        "Write it as 'bf,fd->bd'.",
    ),
    Code(
        "TF145",
        "stages of a program not kept",
        "XLA did not write the program at the stages of its compilation, which tell how it was divided.",
        "Update jaxlib; see that no plugin compiles in its place.",
    ),
    Code(
        "TF146",
        "no such collective",
        "An entry of the collectives that may happen is not written as an operation over axes.",
        "Write it as all-reduce(data) or all-to-all(expert, data).",
    ),
    Code(
        "TF147",
        "no intent in a file",
        "The file is no TOML, or says something that is not part of an intent.",
        "It may have batch, expect, mesh, params and activations; see the documentation of show sharding.",
    ),
    Code(
        "TF148",
        "no such parallel plan",
        "Sizes of parallel dimensions that describe no mesh of the given ranks, or the name of something that a plan "
        "does not have.",
        "The product of pp, tp, gtp and cp, and that of pp, etp, egtp and ep, must divide the number of ranks.",
    ),
    # TF2xx, findings
    Code(
        "TF201",
        "exposed communication",
        "Communication runs while the same participant computes nothing, so the step waits for the network.",
        "Start it earlier, cut it into pieces that overlap with computation, or send less.",
    ),
    Code(
        "TF202",
        "a late participant makes others wait",
        "The others reached a collective earlier and waited; the network is not what took the time.",
        "Look at what the late participant did before it arrived.",
    ),
    Code(
        "TF203",
        "launch-bound",
        "The critical path runs through the host: the device is done before the next work is launched.",
        "Launch less often: compile or capture larger pieces, batch small operations, avoid synchronisation.",
    ),
    Code(
        "TF204",
        "idle device",
        "The device has nothing to do for a notable part of the window.",
        "Look at what the path does during the gaps: input, host work or a wait for somebody else.",
    ),
    Code(
        "TF205",
        "compilation inside measured steps",
        "A program was compiled while steps were measured, so these steps say little about the steady state.",
        "Warm up before recording, and keep shapes and static arguments fixed.",
    ),
    Code(
        "TF206",
        "host timings simulate devices",
        "The devices are threads of one host. Their order and dependencies are real, their speed is not.",
        "Record on the accelerator before concluding anything about its time.",
    ),
    Code(
        "TF207",
        "copies on the critical path",
        "Moving data between memories determines a part of the step's length.",
        "Keep data where it is used, pin host memory, or overlap the copy with computation.",
    ),
    Code(
        "TF208",
        "a change that selects nothing",
        "No slice of the window carries a name that the pattern matches, on the ranks that were asked for.",
        "Look the name up in the critical path; patterns are regular expressions.",
    ),
    Code(
        "TF209",
        "prediction with unknown dependencies",
        "The trace does not tell what some work waited for, so that a what-if cannot be exact.",
        "Record all ranks, and synchronisation events where the profiler offers them.",
    ),
    Code(
        "TF210",
        "communication that is not recognised",
        "Kernels that no table knows bear the name of a collective; or they fill a stream beside the one that computes, "
        "and their names or the operators that launched them speak of communication. They count as computation.",
        "If they communicate, name them: --communication REGEX, communication in [tool.traceflow] of pyproject.toml, or "
        "tf.open(..., communication=[...]).",
    ),
    Code(
        "TF211",
        "reported peak too low",
        "The runtime reports less memory for a program than is alive in it at once: on CPU, for one, the figure leaves "
        "temporaries out.",
        "Plan with the live peak.",
    ),
    Code(
        "TF212",
        "arguments kept beside results",
        "Arguments of a program could become results of the same size, but the program may not overwrite them, so that "
        "both are in memory.",
        "Donate what is not needed after the call: jax.jit(..., donate_argnums=...).",
    ),
    Code(
        "TF213",
        "much padding in layouts",
        "The compiler stores values in tiles, and fills up those that a dimension does not fill.",
        "Make the dimensions that the layout puts last multiples of the tile, or let a longer one be last.",
    ),
    Code(
        "TF214",
        "far from what the hardware allows",
        "An operation takes much longer than its FLOPs, its memory traffic or what it sends need at peak rates.",
        "Look at its shapes, its layout and what it is fused with; small work cannot fill a device.",
    ),
    Code(
        "TF215",
        "recomputation",
        "Activations that were thrown away to save memory are computed again in the backward pass.",
        "Keep more of them where memory allows it; what computation hides costs nothing.",
    ),
    Code(
        "TF216",
        "virtual devices wait for threads",
        "Devices that are simulated on a CPU share the threads of the host. Operations that were ready waited while "
        "those threads ran other operations; on the path this shows as idle, since such order is no dependency.",
        "Simulate fewer devices, or give the host more cores; an accelerator has no such queue.",
    ),
    Code(
        "TF231",
        "parameter gathered in full",
        "Every device assembles all of a parameter of which it was to hold a part, and no product needs that: it costs "
        "the memory and the traffic of a parameter that is not split. Fully sharded data parallelism gathers a "
        "parameter over exactly the axes that split it, for a batch that lies over the same axes; that is no finding.",
        "Let what is computed with the parameter lie over its axes, or state where the result is to lie.",
    ),
    Code(
        "TF232",
        "all-reduce where a reduce-scatter would do",
        "Every device receives all sums and keeps a slice of them: twice the bytes, and memory for the whole.",
        "Use psum_scatter in shard_map, or a backend whose compiler fuses the pair.",
    ),
    Code(
        "TF233",
        "batch or activation on every device",
        "An array that was to be divided lies whole along an axis, so that devices compute the same; no collective "
        "shows it. Told where the author names the axes of the batch or of an activation, or where nothing is divided.",
        "Place the input with a sharding, or constrain the array; a constant made inside a program has no sharding.",
    ),
    Code(
        "TF234",
        "reshard that nobody asked for",
        "The compiler lays an array out anew because the operands of an instruction lie differently; or a change of "
        "layout that was asked for takes several collectives.",
        "Let the operands lie alike, or state with a constraint where the array is to change.",
    ),
    Code(
        "TF235",
        "involuntary full rematerialisation",
        "The partitioner knows no collective that takes an array from one sharding to another: every device assembles "
        "all of it and cuts it anew. XLA says so on standard error only.",
        "Go there in steps: a constraint between the two that keeps one dimension as it was.",
    ),
    Code(
        "TF236",
        "shards that do not divide evenly",
        "A dimension is no multiple of its pieces: the last device holds padding, and masks keep it out of results.",
        "Pad to a multiple of the pieces, or split a dimension that divides.",
    ),
    Code(
        "TF237",
        "sum split on one side only",
        "A product sums an index that one operand splits over devices while all of the other lies on every device, "
        "which reads only its part of it.",
        "Split the other operand alike.",
    ),
    Code(
        "TF238",
        "sum over an axis along which nothing differs",
        "What is summed over devices is the same on all of them: the result is their number times too large, or the "
        "traffic is for nothing.",
        "Leave the axis out of the sum, or split the input over it.",
    ),
    Code(
        "TF239",
        "claimed replication",
        "out_specs of shard_map say that a result is alike along an axis. That is a claim, and reduces nothing: which "
        "device's value is taken is left open.",
        "Reduce over the axis (psum), or name it in out_specs; leave check_vma on.",
    ),
    Code(
        "TF244",
        "all experts computed, then masked",
        "Every expert computes every token, and a mask multiplies what was not chosen by zero.",
        "Send tokens to their experts, or sort them by expert and multiply groups.",
    ),
    Code(
        "TF245",
        "array not as stated",
        "An array lies otherwise than its author states beside the program.",
        "Place it with the sharding that was meant.",
    ),
    Code(
        "TF246",
        "collectives not as stated",
        "The author lists the collectives that may happen; one happens that is not in the list, or one in the list "
        "does not happen.",
        "Look at what lies differently from what was meant, or correct the list.",
    ),
    Code(
        "TF247",
        "plan key that matches no module",
        "A key of the plan for parallelize_module names no module, so that what it was to split stays whole on every "
        "rank. Results are right; nothing is saved.",
        "Correct the key; the nearest names are told.",
    ),
    Code(
        "TF248",
        "implicit redistribution",
        "Operands of an operator lie differently, and PyTorch moves one of them by collectives, without a word. Sums "
        "that are added up, and parameters that are gathered as full sharding means it, are none.",
        "Let the operands lie alike, or redistribute where it is wanted.",
    ),
    Code(
        "TF249",
        "replicas that differ",
        "An array is claimed to be the same on several devices, and is not. Nothing else compares them: whichever is "
        "read decides what the result is.",
        "Begin with the same values everywhere, and reduce what devices compute from different data.",
    ),
    # TF3xx, quality of the evidence
    Code(
        "TF301",
        "rank assumed",
        "Neither the metadata nor the file name tells the rank, so it is taken to be 0.",
        "Name the files by rank, as in rank3.json, when several are read together.",
    ),
    Code(
        "TF302",
        "part of the trace is missing",
        "Some events could not be read, or the trace does not say when it began; the rest was read.",
        "Let the profiler finish writing and copy the file again; results hold for the part that is there.",
    ),
    Code(
        "TF303",
        "order across streams unknown",
        "The trace has no synchronisation records, so which stream waited for which is not known.",
        "Record with synchronisation events (torch: experimental_config enable_cuda_sync_events=True).",
    ),
    Code(
        "TF304",
        "contradicted dependencies",
        "Some dependencies were dropped, because the timestamps show the effect before its cause.",
        "A few are noise of the clocks; many mean that clocks or correlation numbers cannot be trusted.",
    ),
    Code(
        "TF305",
        "participants absent",
        "Some members of a collective are not in the capture, so its calls are not split into wait and transfer.",
        "Read the traces of all ranks together.",
    ),
    Code(
        "TF306",
        "no device events",
        "The trace holds host work only; quantities about devices are null.",
        "Enable device activities in the profiler, and check that it may read the device's counters.",
    ),
    Code(
        "TF307",
        "launched outside the window",
        "Device work in the window was launched before recording began, so its cause is not known.",
        "Let a step of warm-up pass between the start of the profiler and the first measured step.",
    ),
    Code(
        "TF308",
        "clocks not aligned",
        "No collective connects these ranks, so their clocks cannot be related and no figure spans them.",
        "Record ranks that take part in common collectives.",
    ),
    Code(
        "TF309",
        "nesting repaired",
        "Events on one thread overlapped without nesting; the inner ones were cut to fit.",
        "Harmless in small numbers; many mean that two threads share one number in the trace.",
    ),
    Code(
        "TF310",
        "calls of gloo without a group",
        "gloo writes no process group into its trace, and the flight recorder's dump does not tell that of these calls.",
        "Record fewer steps, or set TORCH_FR_BUFFER_SIZE to more than the collectives of the recording.",
    ),
    Code(
        "TF311",
        "step cut by the end of the recording",
        "The profiler stopped within this step. Its work is there, but it counts as no step, since its end is not known.",
        "Stop the profiler between two steps.",
    ),
    Code(
        "TF312",
        "steps put one after another",
        "The steps of an operation table overlap in time, as they do where each is timed from its own start.",
        "Nothing to do: steps are explained one by one. Only their distance from the start of the capture is not recorded.",
    ),
    Code(
        "TF313",
        "history of memory truncated",
        "The allocator keeps a limited history. Here it contradicts the blocks that are there in the end, so that "
        "amounts in all, and the peak, cannot be told.",
        "Keep a longer history: torch.cuda.memory._record_memory_history(max_entries=...).",
    ),
    Code(
        "TF314",
        "a program could not be read",
        "A file with a compiled program is damaged or cut short; what it would have told is missing.",
        "Copy the file again, or dump the program again and let the compiler finish.",
    ),
    Code(
        "TF315",
        "transfers recorded without their waits",
        "Both ends of nearly every transfer begin at one moment: the table tells how long data travelled, not how long "
        "one end waited for the other. Who was waited for is not known; the slowdown of the job does not need it.",
        "Ask a table that keeps when each end arrived for the critical path and for waits.",
    ),
    Code(
        "TF316",
        "faster than the hardware allows",
        "Operations took less time than their work needs at the peak rates of the hardware that was assumed: it was "
        "other hardware, caches held what they read, or they did less than their shapes say.",
        "Name the hardware with --hardware; of small work, take no notice.",
    ),
    # TF9xx, traceflow itself
    Code(
        "TF900",
        "a bug in traceflow",
        "Something happened that traceflow did not foresee. The input may be unusual, but the message should have said so.",
        "Report it with the output of the same command and --debug.",
    ),
)

CODES: Mapping[str, Code] = MappingProxyType({entry.code: entry for entry in _ALL})
"""Every code by its name."""
