"""TF250 to TF283: plans, products that are cut into rounds, and comparisons."""

from __future__ import annotations

from traceflow.codes.code import Code

PLAN_FINDINGS = (
    Code(
        "TF250",
        "sizes of a plan do not divide",
        "Experts, a width, parameters or a batch cannot be dealt out alike to the ranks that a plan has for them.",
        "Choose sizes that divide.",
        formula="size mod parts > 0.",
        example="Six experts for four ranks of EP.",
        command="traceflow plan --world 16 --ep 4 --experts 6 --topk 2 --hidden 64 --expert-hidden 128",
        output="TF250 error: the number of experts 6 is no multiple of EP = 4 (derived)",
    ),
    Code(
        "TF251",
        "stages of a pipeline without equal work",
        "Layers cannot be dealt out to all parts of the pipeline alike, or there are fewer micro-batches than stages.",
        "Arrange by hand which stage has which layers; use more micro-batches.",
        formula="layers mod (PP * VPP) > 0, or micro-batches < PP.",
        example="Six layers in four stages.",
        command=("traceflow plan --world 16 --pp 4 --layers 6 --experts 8 --topk 2 --hidden 64 --expert-hidden 128"),
        output="TF251 warning: 6 layers cannot be dealt out to 4 parts of the pipeline alike (derived)",
    ),
    Code(
        "TF252",
        "two meshes with different pipelines",
        "In the order of ranks that was chosen, stages hold other ranks for experts than for everything else.",
        "Put pp last in the order of ranks.",
        formula=("Ranks between two stages: product of the sizes of the axes before pp in the order, on both meshes."),
        example=(
            "pp stands behind tp, so that stages are 2 ranks apart in attention (TP 2) and 1 among experts (ETP 1)."
        ),
        command="traceflow plan --world 16 --pp 2 --tp 2 --ep 2 --order tp-pp-gtp-cp-ep-dp",
        output=(
            "TF252 error: the stages of the pipeline hold other ranks on the mesh of experts than on the dense one "
            "(derived)"
        ),
    ),
    Code(
        "TF253",
        "parts of a plan that exclude each other",
        "Two options that a plan combines do not work together, such as tensor parallelism in attention without "
        "sequence parallelism, or hash routing with overlap between micro-batches.",
        "Leave one of them out, as the finding says.",
        formula="Told for each pair of options that exclude each other.",
        example="Tensor parallelism without sequence parallelism, with experts.",
        command=("traceflow plan --world 16 --tp 2 --no-sp --experts 8 --topk 2 --hidden 64 --expert-hidden 128"),
        output=("TF253 error: TP 2 without sequence parallelism: experts would meet every token twice over (derived)"),
    ),
    Code(
        "TF254",
        "groups not as planned",
        "Ranks communicate in other groups than the plan has for this purpose, or there are more or fewer ranks.",
        "Compare the sizes and the order of ranks of the plan with what the program was started with.",
        formula="Members of the groups that communicate for a purpose, against those of the plan.",
        example="A mixture of experts runs with EP 2; the plan says EP 4.",
        command="traceflow plan check demo-torch/ep2_edp2 --preset moe-torch-ep2-edp2 --ep 4",
        output=("TF254 warning: groups of token dispatch: planned [0, 1, 2, 3], observed [[0, 1], [2, 3]] (derived)"),
    ),
    Code(
        "TF255",
        "payload not as planned",
        "A collective carries more or fewer bytes than follow from the plan, its model and its batch.",
        "Compare batch, widths, number types and the dispatcher of the plan with those of the program.",
        formula=(
            "observed / planned bytes of a rank. Where the router decides, their mean may be 5 % off, and is said to "
            "differ from a factor of 1.5 on; gradients may travel with 1 % more."
        ),
        example="The plan divides the tokens of a rank by TP 2; the program does not.",
        command="traceflow plan check demo-torch/ep2_edp2 --preset moe-torch-ep2-edp2 --tp 2 --sp --etp 1",
        output="TF255 warning: payload of dispatch forward: planned 65,536, observed 131,072 (derived)",
    ),
    Code(
        "TF256",
        "number of collectives not as planned",
        "A collective happens more or less often in a step than layers and micro-batches of the plan make it.",
        "Look for recomputation, for layers that the plan leaves out, and for collectives that nobody meant.",
        formula=("planned = layers of a stage * micro-batches, against how often a rank takes part in a step."),
        example="The plan has two micro-batches where the program has one.",
        command="traceflow plan check demo-torch/ep2_edp2 --preset moe-torch-ep2-edp2 --tp 2 --sp --etp 1",
        output="TF256 warning: count of dispatch forward: planned 2, observed 1 (derived)",
    ),
    Code(
        "TF257",
        "shape not as planned",
        "Operators are given arrays of another shape than the plan has at this stage.",
        "Compare batch and widths of the plan with those of the program.",
        formula=("Shapes that record_shapes of the profiler leaves, against [n, h, E] and the like of the plan."),
        example="The router sees 256 rows where the plan has 128.",
        command="traceflow plan check demo-torch/ep2_edp2 --preset moe-torch-ep2-edp2 --tp 2 --sp --etp 1",
        output=("TF257 warning: shape of router logits forward: planned [128, 64, 8], observed [256, 64, 8] (derived)"),
    ),
    Code(
        "TF260",
        "blocks multiplied with rows of others",
        "In a product that is cut into rounds, a device multiplies the block that it has with rows of its other "
        "operand that belong to another block. The result is wrong.",
        "After t permutes from the next device a device has the block of (index + t) mod N; slice for that one.",
        formula=("In round t, device i has the block of (i + t) mod N, and must read the rows of that block."),
        example="Blocks come from the next device, but the slice follows (i - t) mod N.",
        command="traceflow show collective-matmul runs/a",
        output=(
            "TF260 error: jit_backwards/ppermute.9: 2 of 4 rounds use rows of other blocks: in round 1 device 0 has "
            "the block of 1"
        ),
    ),
    Code(
        "TF261",
        "summed in the wrong place",
        "A product that is cut into rounds adds up what belongs to different parts of the result, leaves a block "
        "out or counts it twice, ends a sum on another device than the one that has that part, or adds up again "
        "over devices what is complete on each.",
        "Add on each device what belongs to its own part, each block once; where blocks travel, no reduction follows.",
        formula=("Each part of the result = sum over all N blocks, each once, on the device that holds that part."),
        example="Where blocks travel, each device ends with the whole sum. A psum adds up N copies of it.",
        command="traceflow show collective-matmul runs/a",
        output=("TF261 error: jit_summed_again/ppermute.9: psum.7 adds up over the devices what is complete on each"),
    ),
    Code(
        "TF262",
        "a permute for nothing",
        "A ring of N devices needs N - 1 permutes for N products. More bring a device its own block, zeros, or "
        "what nobody uses.",
        "Send before each round but the first, or after each but the last.",
        formula="Permutes - those that bring somebody else's block, or a sum, that is used.",
        example="A loop sends once more after its last product.",
        command="traceflow show collective-matmul runs/a",
        output=(
            "TF262 warning: jit_one_too_many/ppermute.12: 4 permutes in a ring of 4, 1 of them for nothing (compiler)"
        ),
    ),
    Code(
        "TF263",
        "overlap ruled out by a dependency",
        "A permute needs the product of its round, or the product needs the permute, so that they can only run "
        "one after the other.",
        "Send the block as it came; combine with products only what is not sent.",
        formula=("A path of dependencies between a permute and the product of its round, in either direction."),
        example="Each block is scaled by a number that comes from the product before it is sent on.",
        command="traceflow show collective-matmul runs/a",
        output=(
            "TF263 warning: jit_in_turn/ppermute.9: 3 of 3 permutes cannot run beside the product of their round "
            "(compiler)"
        ),
    ),
    Code(
        "TF264",
        "decomposed but not hidden",
        "A product is cut into rounds, and what is sent between them is exposed all the same.",
        "See that the permutes are asynchronous and start early; else the product is better left in one piece.",
        formula=(
            "exposed > 10 % of the time of the permutes, and less than half of it would be left if products hid all "
            "that they are long enough for."
        ),
        example="Three cards: each round multiplies for 10 us, and only then sends its block on, for 5 us.",
        command="traceflow show collective-matmul runs/ring",
        output="TF264 warning: aten::mm [[64, 64], [64, 64]]: the product is cut into rounds, but its permutes do not hide behind them (measured, 10.000 us)",
    ),
    Code(
        "TF265",
        "rounds too short to hide what is sent",
        "The products of the rounds take less time than the transfers that they are to hide.",
        "Cut into fewer and larger pieces, or send in both directions.",
        formula="2 (transfers - time of the products beside them) >= exposed.",
        example="The same with products of 2 us, and messages of 12 us beside them.",
        command="traceflow show collective-matmul runs/ring",
        output="TF265 warning: aten::mm [[64, 64], [64, 64]]: the products of its rounds are shorter than what is sent meanwhile (measured, 22.000 us)",
    ),
    Code(
        "TF266",
        "collective beside a product",
        "A product needs what a collective gathers, or a collective adds up what a product makes. Cut into "
        "rounds, most of the transfer could be hidden behind the product.",
        "Write it as a collective matmul, or let the compiler do it; smaller pieces multiply less well.",
        formula=(
            "saved = window - window replayed with each transfer at max(0, transfer - product (n - 1) / n). It is a "
            "finding from 1 % of the window on."
        ),
        example=(
            "A step of two layers on two GPUs: the weights of each are gathered right before they are multiplied."
        ),
        command="traceflow show collective-matmul gather_then_matmul",
        output=(
            "TF266 info: all-gather could be sent in pieces while sm90_xmma_gemm_bf16_full_layer00_kernel multiplies "
            "them (modelled, 182.788 us)"
        ),
    ),
    Code(
        "TF281",
        "two runs computed different results",
        "Outputs that both runs recorded differ in shape, order or value by more than the tolerance.",
        "Find out which of them is right first; where the order of sums differs, give a tolerance that allows for it.",
        formula="|a - b| <= atol + rtol |a| for every value, by default 1e-8 + 1e-5 |a|.",
        example="Two forms of a product, of which one has lost a sum.",
        command="traceflow diff runs/gather runs/ring",
        output="TF281 error: 1 recorded outputs differ, product first",
    ),
    Code(
        "TF282",
        "refuted claim",
        "What was claimed of a change is not so, by the figures of both runs and their spread.",
        "Look at the figures beside the claim, and at what changed in the plan.",
        formula="A claim is refuted where it is true of no part of the spread of its quantities.",
        example="A ring was to send less, but somebody claims the contrary.",
        command='traceflow diff runs/gather runs/ring --claim "more all-gather bytes"',
        output="TF282 warning: refuted: more all-gather bytes (measured)",
    ),
    Code(
        "TF283",
        "gate that does not hold",
        "A quantity is beyond the limit that was set for it, or is not known; what is not known never passes.",
        "Look at the value and at the reason beside it; correct the program, the recording or the limit.",
        formula=(
            "The expression, with the figures of the run; of several values the worst counts. What is not known does "
            "not hold."
        ),
        example="A mixture of experts on four GPUs exposes 45 % of a step on one rank; 15 % is allowed.",
        command='traceflow check moe_hot_rank --require "exposed_share < 15 %"',
        output="TF283 error: exposed_share < 15 % does not hold",
    ),
)
