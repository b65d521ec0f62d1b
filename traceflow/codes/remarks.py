"""TF3xx: what limits the evidence."""

from __future__ import annotations

from traceflow.codes.code import Code

REMARKS = (
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
    Code(
        "TF317",
        "routing record incomplete",
        "Calls of a layer were overwritten, or not recorded by all ranks that exchange tokens.",
        "Record fewer steps, and call traceflow.moe in each forward pass on every rank.",
    ),
    Code(
        "TF318",
        "limits of a profile of Nsight Systems",
        "Nsight Systems does not say which process is which rank, nor who takes part in a collective; tables of nsys-jax "
        "say when ranges were on the device, and not on which stream. What was assumed instead is named in the remark.",
        "See docs/nsight.md for what to record; NVTX of NCCL, one process per device and programs beside it tell more.",
    ),
    Code(
        "TF319",
        "recording not complete",
        "The manifest says that this recording did not end well: its program was killed or failed, the disk was full, or a "
        "process of the job ended before the others. What was written until then was read.",
        "Results hold for the part that is there. Record again; the manifest (`problem`) says what went wrong.",
    ),
    Code(
        "TF320",
        "events at times that cannot be",
        "A few events begin or end so far out of the span of all others that their times must be damaged: one of them "
        "would be nearly all of the recording. They were left out, and what they did is missing.",
        "Record again with newer drivers; such events are known of ROCm and of CUPTI after the device was idle.",
    ),
    Code(
        "TF321",
        "perhaps of several runs",
        "Recordings that were read together lie far apart in time, so that their ranks may be of different runs.",
        "Give the files of one run alone. If they are of one, set the clocks of the hosts.",
    ),
    Code(
        "TF322",
        "steps without device events",
        "In some steps calls launched work on a device, and none of that work was recorded: the profiler lost it.",
        "Ask about steps that are whole; record fewer steps at a time, and with larger buffers of the profiler.",
    ),
    Code(
        "TF323",
        "trace cut by its exporter",
        "The file holds exactly as many events as its exporter writes at most, so that the rest was left out silently.",
        "Give the XSpace (.xplane.pb) that lies beside the JSON, or record fewer steps.",
    ),
)
