"""TF2xx: what is worth changing about a step or a program."""

from __future__ import annotations

from traceflow.codes.code import Code

FINDINGS = (
    Code(
        "TF201",
        "exposed communication",
        "Communication runs while the same participant computes nothing, so the step waits for the network.",
        "Start it earlier, cut it into pieces that overlap with computation, or send less.",
        formula="exposed_ns of a participant is the length of what communicates less that of what computes at the "
        "same time. It is a finding from exposed_ns / window = 5 % on, of the participant with most; its cost"
        " is exposed_ns.",
        example="In a step of a mixture of experts on four GPUs of 4,527 us, one spends 2,035 us in collectives while"
        " it computes nothing: 45 %. Only 1,513 us of these would go if transfers took no time; the rest is spent waiting for others all the same.",
    ),
    Code(
        "TF202",
        "a late participant makes others wait",
        "The others reached a collective earlier and waited; the network is not what took the time.",
        "Look at what the late participant did before it arrived.",
        formula="The cost is the length of the window less that of a replay in which the work is as long as on its "
        "peers, their median. It is a finding from 1 % of the window on.",
        example="In the same step rank 1 has the hot expert: its grouped product takes longer than on three peers, "
        "and they wait at the next all-to-all. With the product as long as theirs the step would be 89 us "
        "shorter.",
    ),
    Code(
        "TF203",
        "launch-bound",
        "The critical path runs through the host: the device is done before the next work is launched.",
        "Launch less often: compile or capture larger pieces, batch small operations, avoid synchronisation.",
        formula="1 - replayed / measured, where the replay lets device work start with its launch call, or host code "
        "take no time, whichever saves more. It is a finding from 5 % on.",
        example="A forward pass of a small BERT with 141 tokens on an H100 takes 4.8 ms, of which a replay without "
        "host code leaves 16 %: kernels of a few us wait for the operators that launch them. A CUDA graph or "
        "torch.compile is what helps.",
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
        formula="A step in which the runtime reports a compilation. It is left out of the steady state, which is the "
        "median of the others.",
        example="The last batch of an epoch has 7 rows instead of 8. Its shape is new, so jit compiles once more, and"
        " that step takes seconds instead of milliseconds. Dropping or padding the batch keeps it away.",
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
        formula="1 - replayed / measured, where the replay lets copies take no time. It is a finding from 5 % on.",
        example="A loader hands over 256 MiB in pageable memory, which a link of 6 GB/s takes 45 ms to copy before "
        "the step can begin. From pinned memory and on another stream the copy hides behind the step before.",
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
        formula="The largest sum of the sizes of buffers that are alive at one moment of the schedule, against the "
        "peak that the runtime reports for the program.",
        example="A function multiplies two matrices of 64 MiB and sums up the squares of the product. 192 MiB are "
        "alive at once; a runtime that leaves temporaries out reports the arguments, 128 MiB.",
    ),
    Code(
        "TF212",
        "arguments kept beside results",
        "Arguments of a program could become results of the same size, but the program may not overwrite them, so that "
        "both are in memory.",
        "Donate what is not needed after the call: jax.jit(..., donate_argnums=...).",
        formula="The sum of the arguments that could be donated, each to a result of its size. It is a finding from 1"
        " % of the peak and 1 MiB on.",
        example="A training step of a model with 4 GiB of parameters and 8 GiB of state returns both anew, so that 24"
        " GiB are there at its end. Donated, they are 12 GiB.",
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
        formula="measured / max(FLOPs / peak, bytes / memory bandwidth, payload / link bandwidth). It is a finding "
        "above 2, where what is beyond the bound is more than 5 % of the time of all operations.",
        example="A linear layer of 512 by 512 on 141 rows takes 24 times what reading and writing its operands needs on an H100: the work is too small to fill the GPU, and batches or fusion would bring it closer.",
    ),
    Code(
        "TF215",
        "recomputation",
        "Activations that were thrown away to save memory are computed again in the backward pass.",
        "Keep more of them where memory allows it; what computation hides costs nothing.",
        formula="Time of operations that were traced again for the backward pass / time of all operations. It is a "
        "finding from 5 % on.",
        example="With every layer under jax.checkpoint the forward pass runs twice, and the backward pass takes as "
        "long as both together: a quarter of the time computes again what was there.",
    ),
    Code(
        "TF216",
        "virtual devices wait for threads",
        "Devices that are simulated on a CPU share the threads of the host. Operations that were ready waited while "
        "those threads ran other operations; on the path this shows as idle, since such order is no dependency.",
        "Simulate fewer devices, or give the host more cores; an accelerator has no such queue.",
    ),
    Code(
        "TF217",
        "experts have unequal work",
        "One expert gets many times the mean of the assignments, or the experts of one rank multiply more rows than those "
        "of others, which wait for it at the next exchange. The cost is that of a replay in perfect balance.",
        "Balance the router with an auxiliary loss or a bias, or place copies of hot experts on several ranks.",
        formula="hot_expert_ratio is the most tokens of an expert / their mean, rank_imbalance_ratio the most rows of"
        " a rank / their mean. It is a finding from 2 or from 1.1 on, with a cost where the trace can be "
        "replayed.",
        example="1,024 assignments go to 8 experts, of which one gets 512: its ratio is 512 / 128 = 4. In every "
        "exchange the ranks without it wait for the one that has it.",
    ),
    Code(
        "TF218",
        "tokens dropped",
        "More tokens chose an expert than its capacity holds; these get nothing from it. A trace does not show it.",
        "Raise the capacity, balance the router, or drop nothing.",
    ),
    Code(
        "TF219",
        "experts multiply rows without a token",
        "Rows that fill up a capacity or an alignment, or that a mask throws away, cost as much as those with a token.",
        "Lower the capacity or the alignment, or multiply groups of unequal length.",
    ),
    Code(
        "TF220",
        "host waits inside the exchange of tokens",
        "The host needs the splits of an all-to-all and waits for the device to count them, so that nothing can be "
        "launched meanwhile.",
        "Keep the splits on the device, fix them with a capacity, or copy them early on a stream of their own.",
    ),
    Code(
        "TF221",
        "results of experts combined wrongly",
        "What a layer made of the rows that came back is not the sum by token of each row times its gate: a gate was "
        "applied twice or not at all, or rows were taken for those of other tokens.",
        "Apply each gate once, in the expert or when combining, and add up by the token of each row.",
    ),
    Code(
        "TF222",
        "routing record and trace disagree",
        "An all-to-all moves other rows than follow from the record of its call.",
        "Tell the counts of the very call, with the groups and the capacity that it uses.",
    ),
    Code(
        "TF223",
        "idle while communication runs",
        "The trace holds no records of what one stream waited for on another. Much of the path is idle while the same "
        "device communicates on another stream: work that waits for communication looks so.",
        "Take it for exposed communication. Record with synchronisation events, where the platform offers them.",
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
    Code(
        "TF250",
        "sizes of a plan do not divide",
        "Experts, a width, parameters or a batch cannot be dealt out alike to the ranks that a plan has for them.",
        "Choose sizes that divide.",
    ),
    Code(
        "TF251",
        "stages of a pipeline without equal work",
        "Layers cannot be dealt out to all parts of the pipeline alike, or there are fewer micro-batches than stages.",
        "Arrange by hand which stage has which layers; use more micro-batches.",
    ),
    Code(
        "TF252",
        "two meshes with different pipelines",
        "In the order of ranks that was chosen, stages hold other ranks for experts than for everything else.",
        "Put pp last in the order of ranks.",
    ),
    Code(
        "TF253",
        "parts of a plan that exclude each other",
        "Two options that a plan combines do not work together, such as tensor parallelism in attention without "
        "sequence parallelism, or hash routing with overlap between micro-batches.",
        "Leave one of them out, as the finding says.",
    ),
    Code(
        "TF254",
        "groups not as planned",
        "Ranks communicate in other groups than the plan has for this purpose, or there are more or fewer ranks.",
        "Compare the sizes and the order of ranks of the plan with what the program was started with.",
    ),
    Code(
        "TF255",
        "payload not as planned",
        "A collective carries more or fewer bytes than follow from the plan, its model and its batch.",
        "Compare batch, widths, number types and the dispatcher of the plan with those of the program.",
    ),
    Code(
        "TF256",
        "number of collectives not as planned",
        "A collective happens more or less often in a step than layers and micro-batches of the plan make it.",
        "Look for recomputation, for layers that the plan leaves out, and for collectives that nobody meant.",
    ),
    Code(
        "TF257",
        "shape not as planned",
        "Operators are given arrays of another shape than the plan has at this stage.",
        "Compare batch and widths of the plan with those of the program.",
    ),
    Code(
        "TF260",
        "blocks multiplied with rows of others",
        "In a product that is cut into rounds, a device multiplies the block that it has with rows of its other operand "
        "that belong to another block. The result is wrong.",
        "After t permutes from the next device a device has the block of (index + t) mod N; slice for that one.",
    ),
    Code(
        "TF261",
        "summed in the wrong place",
        "A product that is cut into rounds adds up what belongs to different parts of the result, leaves a block out or "
        "counts it twice, ends a sum on another device than the one that has that part, or adds up again over devices "
        "what is complete on each.",
        "Add on each device what belongs to its own part, each block once; where blocks travel, no reduction follows.",
    ),
    Code(
        "TF262",
        "a permute for nothing",
        "A ring of N devices needs N - 1 permutes for N products. More bring a device its own block, zeros, or what "
        "nobody uses.",
        "Send before each round but the first, or after each but the last.",
    ),
    Code(
        "TF263",
        "overlap ruled out by a dependency",
        "A permute needs the product of its round, or the product needs the permute, so that they can only run one "
        "after the other.",
        "Send the block as it came; combine with products only what is not sent.",
    ),
    Code(
        "TF264",
        "decomposed but not hidden",
        "A product is cut into rounds, and what is sent between them is exposed all the same.",
        "See that the permutes are asynchronous and start early; else the product is better left in one piece.",
    ),
    Code(
        "TF265",
        "rounds too short to hide what is sent",
        "The products of the rounds take less time than the transfers that they are to hide.",
        "Cut into fewer and larger pieces, or send in both directions.",
    ),
    Code(
        "TF266",
        "collective beside a product",
        "A product needs what a collective gathers, or a collective adds up what a product makes. Cut into rounds, most "
        "of the transfer could be hidden behind the product.",
        "Write it as a collective matmul, or let the compiler do it; smaller pieces multiply less well.",
    ),
    Code(
        "TF281",
        "two runs computed different results",
        "Outputs that both runs recorded differ in shape, order or value by more than the tolerance.",
        "Find out which of them is right first; where the order of sums differs, give a tolerance that allows for it.",
    ),
    Code(
        "TF282",
        "refuted claim",
        "What was claimed of a change is not so, by the figures of both runs and their spread.",
        "Look at the figures beside the claim, and at what changed in the plan.",
    ),
    Code(
        "TF283",
        "gate that does not hold",
        "A quantity is beyond the limit that was set for it, or is not known; what is not known never passes.",
        "Look at the value and at the reason beside it; correct the program, the recording or the limit.",
    ),
)
