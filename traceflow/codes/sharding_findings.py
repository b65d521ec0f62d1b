"""TF231 to TF249: what is worth changing about how arrays lie."""

from __future__ import annotations

from traceflow.codes.code import Code

SHARDING_FINDINGS = (
    Code(
        "TF231",
        "parameter gathered in full",
        "Every device assembles all of a parameter of which it was to hold a part, and no product needs that: it "
        "costs the memory and the traffic of a parameter that is not split. Fully sharded data parallelism "
        "gathers a parameter over exactly the axes that split it, for a batch that lies over the same axes; that "
        "is no finding.",
        "Let what is computed with the parameter lie over its axes, or state where the result is to lie.",
        formula=(
            "A gather that brings an argument together over an axis that splits it, where no product uses the axis "
            "for another index, and no batch lies over it. Its cost is the time of the gather in the trace, if there "
            "is one."
        ),
        example=("w lies over data. The result is to lie over model, so that each device needs all rows of w."),
        command="traceflow show sharding runs/a",
        output=(
            "TF231 warning: every device assembles all of w: it lies over data, the gather runs over model (compiler)"
        ),
    ),
    Code(
        "TF232",
        "all-reduce where a reduce-scatter would do",
        "Every device receives all sums and keeps a slice of them: twice the bytes, and memory for the whole.",
        "Use psum_scatter in shard_map, or a backend whose compiler fuses the pair.",
        formula=(
            "Bytes sent by an all-reduce over n devices: 2 (n - 1) / n of the array; by a reduce-scatter half of that."
        ),
        example=("In shard_map, a product of parts is summed up with psum, and each device then slices its own rows."),
        command="traceflow show sharding runs/a",
        output=("TF232 warning: an all-reduce gives every device all sums, of which it keeps its own part (compiler)"),
    ),
    Code(
        "TF233",
        "batch or activation on every device",
        "An array that was to be divided lies whole along an axis, so that devices compute the same; no "
        "collective shows it. Told where the author names the axes of the batch or of an activation, or where "
        "nothing is divided.",
        "Place the input with a sharding, or constrain the array; a constant made inside a program has no sharding.",
        formula=(
            "local size = global size along an axis that should divide it. Where nobody names the axes of the batch, "
            "it is told from 1,000,000 FLOPs on, if no array of the program is split."
        ),
        example="A mesh of eight devices is set up, and the input is never placed on it.",
        command="traceflow show sharding runs/a",
        output="TF233 warning: all 8 devices do all of the work: no array is split (compiler)",
    ),
    Code(
        "TF234",
        "reshard that nobody asked for",
        "The compiler lays an array out anew because the operands of an instruction lie differently; or a change "
        "of layout that was asked for takes several collectives.",
        "Let the operands lie alike, or state with a constraint where the array is to change.",
        formula=(
            "A collective that no product, sum, constraint or argument of the program calls for, or more than one for"
            " a change of layout."
        ),
        example="Two arrays are added. One lies over the rows, the other over the columns.",
        command="traceflow show sharding runs/a",
        output="TF234 warning: an array is laid out anew by all-to-all, which nobody asked for (compiler)",
    ),
    Code(
        "TF235",
        "involuntary full rematerialisation",
        "The partitioner knows no collective that takes an array from one sharding to another: every device "
        "assembles all of it and cuts it anew. XLA says so on standard error only.",
        "Go there in steps: a constraint between the two that keeps one dimension as it was.",
        formula="XLA's own warning, in what it writes to standard error while it compiles.",
        example=(
            "Rows over six devices as 2 by 3, then as 3 by 2. `audit.py` compiles it with `compile_only`, which keeps"
            " the warning, and prints what `sharding` finds."
        ),
        command="python audit.py",
        output="TF235 every device assembles all of sharding_constraint",
    ),
    Code(
        "TF236",
        "shards that do not divide evenly",
        "A dimension is no multiple of its pieces: the last device holds padding, and masks keep it out of results.",
        "Pad to a multiple of the pieces, or split a dimension that divides.",
        formula="padding = pieces * ceil(size / pieces) - size > 0.",
        example="A matrix has 1,003 columns, over four devices: each stores 251.",
        command="traceflow show sharding runs/a",
        output=("TF236 warning: the pieces of jit(f)/sharding_constraint do not divide it: 1003 over 4 (compiler)"),
    ),
    Code(
        "TF237",
        "sum split on one side only",
        "A product sums an index that one operand splits over devices while all of the other lies on every "
        "device, which reads only its part of it.",
        "Split the other operand alike.",
        formula=(
            "In x[b, d] w[d, f] with d split over n devices in x alone, each device reads 1 / n of its w, and holds "
            "all of it."
        ),
        example="x lies over model along its columns, w is whole on every device.",
        command="traceflow show sharding runs/a",
        output=(
            "TF237 warning: a product sums an index that only one operand splits over model: all of w lies on every "
            "device (compiler)"
        ),
    ),
    Code(
        "TF238",
        "sum over an axis along which nothing differs",
        "What is summed over devices is the same on all of them: the result is their number times too large, or "
        "the traffic is for nothing.",
        "Leave the axis out of the sum, or split the input over it.",
        formula="psum over an axis of n devices of a value that does not depend on the axis = n * value.",
        example="In shard_map, a loss that is the same on all devices of model is summed over model.",
        command="traceflow show sharding runs/a",
        output=("TF238 error: a sum over model adds up copies: what is summed does not depend on model (compiler)"),
    ),
    Code(
        "TF239",
        "claimed replication",
        "out_specs of shard_map say that a result is alike along an axis. That is a claim, and reduces nothing: "
        "which device's value is taken is left open.",
        "Reduce over the axis (psum), or name it in out_specs; leave check_vma on.",
        formula=(
            "An output of shard_map with an axis missing from its out_specs, whose value depends on where a device is"
            " along that axis."
        ),
        example="Each device returns the mean of its own rows, and out_specs say P().",
        command="traceflow show sharding runs/a",
        output=(
            "TF239 error: out_specs P() claims that results are alike along data, and nothing makes them so (compiler)"
        ),
    ),
    Code(
        "TF244",
        "all experts computed, then masked",
        "Every expert computes every token, and a mask multiplies what was not chosen by zero.",
        "Send tokens to their experts, or sort them by expert and multiply groups.",
        formula="FLOPs of E experts for all tokens, of which k / E are used.",
        example=("einsum of all tokens with the matrices of all eight experts, times a mask of the chosen ones."),
        command="traceflow show sharding runs/a",
        output=(
            "TF244 warning: all 8 experts are computed for all tokens, and a mask leaves most of them out (compiler)"
        ),
    ),
    Code(
        "TF245",
        "array not as stated",
        "An array lies otherwise than its author states beside the program.",
        "Place it with the sharding that was meant.",
        formula="Axes per dimension, as stated against as compiled.",
        example=(
            "The author states beside the program, in `sharding.toml`, that w lies over model; it is placed over data."
        ),
        command="traceflow show sharding runs/a --intent sharding.toml",
        output="TF245 warning: w lies as P('data'), not as P(None, 'model') (compiler)",
    ),
    Code(
        "TF246",
        "collectives not as stated",
        "The author lists the collectives that may happen; one happens that is not in the list, or one in the "
        "list does not happen.",
        "Look at what lies differently from what was meant, or correct the list.",
        formula="The set of operations over axes that happen, against the list.",
        example='`sharding.toml` says expect = ["all-gather(model)"]; the program sums over model instead.',
        command="traceflow show sharding runs/a --intent sharding.toml",
        output="TF246 warning: all-gather(model) does not happen, though it is expected (compiler)",
    ),
    Code(
        "TF247",
        "key or pattern that names nothing",
        "A key of the plan for parallelize_module names no module, so that what it was to split stays whole on "
        "every rank: results are right, and nothing is saved. Or a pattern of an intent names no argument or parameter, "
        "so that nothing was held against it.",
        "Correct it; the nearest names are told.",
        formula="A key of the plan that matches no name of a module; a pattern that matches no name of an array.",
        example="A plan for parallelize_module names `uo` where the model has `up`.",
        command="traceflow show sharding runs/misspelt_plan",
        output="matches no module (derived)",
    ),
    Code(
        "TF248",
        "implicit redistribution",
        "Operands of an operator lie differently, and PyTorch moves one of them by collectives, without a word. "
        "Sums that are added up, and parameters that are gathered as full sharding means it, are none.",
        "Let the operands lie alike, or redistribute where it is wanted.",
        formula=(
            "Collectives that an operator issues because of how its operands lie, without a call of redistribute."
        ),
        example="Two DTensors are added. One is split by rows, the other by columns.",
        command="traceflow show sharding runs/sum_of_tensors_that_lie_differently",
        output="lays an operand out anew, from",
    ),
    Code(
        "TF249",
        "replicas that differ",
        "An array is claimed to be the same on several devices, and is not. Nothing else compares them: whichever"
        " is read decides what the result is.",
        "Begin with the same values everywhere, and reduce what devices compute from different data.",
        formula=(
            "Distance of the values of two ranks, estimated by random projections, above the square root of the "
            "precision of their type times the larger norm."
        ),
        example="Each rank draws its own batch and calls it Replicate() with DTensor.from_local.",
        command="traceflow show sharding runs/batches_that_differ_claimed_alike",
        output="is claimed to be replicated, but differs between ranks 0, 1, 2, 3 (measured)",
    ),
)
