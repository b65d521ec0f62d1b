"""TF1xx: why an input or a request is refused."""

from __future__ import annotations

from traceflow.codes.code import Code

REFUSALS = (
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
        "The content is no trace that traceflow knows: Kineto JSON, XSpace, trace-event JSON, SQLite of Nsight Systems, or an "
        "operation table.",
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
        "TF123",
        "extra not installed",
        "What was asked for needs a package that explaining a trace does not: DuckDB for queries, XProf or TensorBoard, anywidget for clicks in a notebook.",
        "Install the extra that the message names, such as pip install 'traceflow-ml[query]'.",
    ),
    Code(
        "TF124",
        "nothing for this viewer",
        "The capture holds nothing that the viewer reads: XProf and TensorBoard read XSpace, which JAX records.",
        "Open it in the report or in Perfetto, which show every capture.",
    ),
    Code(
        "TF125",
        "viewer did not start",
        "The viewer ended before it answered, or its port is taken.",
        "Choose another port with --port; see what the viewer says when it is started by hand.",
    ),
    Code(
        "TF127",
        "readers lost",
        "The traces of many ranks were to be read by other processes or by a cluster, which could not be reached, or "
        "ended before they had read them. What a lost worker had read is read again by others; this is told where "
        "that did not help.",
        "Check the address of the cluster, and how much memory its workers have; or leave out --cluster.",
    ),
    Code(
        "TF128",
        "no way to reach it",
        "The URL of the input, or the cluster, needs a package that is not installed, or its scheme is not known.",
        "Install what the message names, such as s3fs for s3://, gcsfs for gs:// or traceflow-ml[cluster] for "
        "--cluster; or copy the files to this machine.",
    ),
    Code(
        "TF129",
        "files of several runs",
        "Traces that were to be read together say that their jobs had different numbers of ranks.",
        "Give the files of one run.",
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
    Code(
        "TF149",
        "no such model",
        "Sizes of a model or of its batch that none can have, or the name of a way to train that is not known.",
        "Give positive sizes, at most as many experts per token as there are, and one of the names that are listed.",
    ),
    Code(
        "TF151",
        "no such split of a layer",
        "The sizes of a layer cannot be divided among the devices that are to share it.",
        "Choose rows and a hidden size that are multiples of the number of devices, and an element type such as bf16.",
    ),
)
