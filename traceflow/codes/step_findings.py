"""TF201 to TF223: what is worth changing about a step."""

from __future__ import annotations

from traceflow.codes.code import Code

STEP_FINDINGS = (
    Code(
        "TF201",
        "exposed communication",
        "Communication runs while the same participant computes nothing, so the step waits for the network.",
        "Start it earlier, cut it into pieces that overlap with computation, or send less.",
        formula=(
            "exposed_ns of a participant is the length of what communicates less that of what computes at the same "
            "time. It is a finding from exposed_ns / window = 5 % on, of the participant with most; its cost is "
            "exposed_ns."
        ),
        example=(
            "The public trace mi300_resnet_rank0of8 of AMD-AGI/TraceLens is one of eight ranks that train a ResNet on"
            " MI300X. Most of the time, its device does nothing but take part in all-reduces of gradients."
        ),
        command="traceflow show communication mi300_resnet_rank0of8.json.gz",
        output="TF201 warning: 64% of the window is exposed communication (measured, 55.625 ms)",
    ),
    Code(
        "TF202",
        "a late participant makes others wait",
        "The others reached a collective earlier and waited; the network is not what took the time.",
        "Look at what the late participant did before it arrived.",
        formula=(
            "The cost is the length of the window less that of a replay in which the work is as long as on its peers,"
            " their median. It is a finding from 1 % of the window on."
        ),
        example=(
            "A step of a mixture of experts on four GPUs. Rank 1 has the hot expert: its grouped product takes longer"
            " than on three peers, and they wait at the next all-to-all."
        ),
        command="traceflow show stragglers moe_hot_rank",
        output=(
            "TF202 warning: rank 1 is late: sm90_xmma_gemm_bf16_expert_fc1_layer00_kernel in grouped_gemm (compute) "
            "takes longer than on its peers (modelled, 89.040 us)"
        ),
    ),
    Code(
        "TF203",
        "launch-bound",
        "The critical path runs through the host: the device is done before the next work is launched.",
        "Launch less often: compile or capture larger pieces, batch small operations, avoid synchronisation.",
        formula=(
            "1 - replayed / measured, where the replay lets device work start with its launch call, or host code take"
            " no time, whichever saves more. It is a finding from 5 % on."
        ),
        example=(
            "A forward pass of a small BERT on an H100, the public trace h100_bert_small of AMD-AGI/TraceLens: "
            "kernels of a few us wait for the operators that launch them. A CUDA graph or torch.compile is what "
            "helps."
        ),
        command="traceflow show savings h100_bert_small.json.gz",
        output=("TF203 warning: if the host took no time, the window would be 84% shorter (modelled, 4,057.864 us)"),
    ),
    Code(
        "TF204",
        "idle device",
        "Not printed any more. Time without work is a kind of its own on the critical path, `idle`, and each "
        "known cause has its code: launches and the host TF203, copies TF207, threads of virtual devices TF216, "
        "communication TF223.",
        "Look at what the path does during the gaps: input, host work or a wait for somebody else.",
    ),
    Code(
        "TF205",
        "compilation inside measured steps",
        "A program was compiled while steps were measured, so these steps say little about the steady state.",
        "Warm up before recording, and keep shapes and static arguments fixed.",
        formula=(
            "A step in which the runtime reports a compilation. It is left out of the steady state, which is the "
            "median of the others."
        ),
        example=(
            "The fourth batch has 7 rows instead of 8. Its shape is new, so jit compiles once more, and that step "
            "takes many times as long. Dropping or padding the batch keeps it away."
        ),
        command="traceflow show summary runs/a",
        output="TF205 warning: 1 recorded step compiles; it is left out of the steady state (measured)",
    ),
    Code(
        "TF206",
        "host timings simulate devices",
        "The devices are threads of one host. Their order and dependencies are real, their speed is not.",
        "Record on the accelerator before concluding anything about its time.",
        formula="Told of each run whose devices are threads: JAX on CPU with more than one device.",
        example="The demo records eight devices on a host of two cores.",
        command="traceflow show critical-path demo/capacity",
        output=(
            "TF206 warning: timings of virtual devices on host threads are a simulation, no evidence about "
            "accelerators (measured)"
        ),
    ),
    Code(
        "TF207",
        "copies on the critical path",
        "Moving data between memories determines a part of the step's length.",
        "Keep data where it is used, pin host memory, or overlap the copy with computation.",
        formula=("1 - replayed / measured, where the replay lets copies take no time. It is a finding from 5 % on."),
        example=(
            "A loader hands over 256 MiB in pageable memory, which takes 45 ms to copy before the products of the "
            "step, 30 ms, can begin. From pinned memory and on another stream the copy hides behind the step before."
        ),
        command="traceflow show savings step.json",
        output=("TF207 warning: if copies took no time, the window would be 60% shorter (modelled, 44.990 ms)"),
    ),
    Code(
        "TF208",
        "a change that selects nothing",
        "No slice of the window carries a name that the pattern matches, on the ranks that were asked for.",
        "Look the name up in the critical path; patterns are regular expressions.",
        formula="Slices of the window that a pattern selects = 0.",
        example="A kernel is looked for by a part of its name that its library does not use.",
        command="traceflow what-if h100_bert_small.json.gz --scale softmaxx=0",
        output="TF208 warning: nothing in the window is selected by softmaxx (modelled)",
    ),
    Code(
        "TF209",
        "prediction with unknown dependencies",
        "The trace does not tell what some work waited for, so that a what-if cannot be exact.",
        "Record all ranks, and synchronisation events where the profiler offers them.",
        formula=(
            "Told where ranks of a collective are absent, or where several streams work and none of their "
            "synchronisation was recorded. Then no bounds can be given either."
        ),
        example="One of eight ranks alone, without synchronisation records.",
        command="traceflow what-if mi300_resnet_rank0of8.json.gz --scale convolution=0.5",
        output=("TF209 warning: the prediction is no more than a bound: rank 0 holds no synchronisation records"),
    ),
    Code(
        "TF210",
        "communication that is not recognised",
        "Kernels that no table knows bear the name of a collective; or they fill a stream beside the one that "
        "computes, and their names or the operators that launched them speak of communication. They count as "
        "computation.",
        "If they communicate, name them: --communication REGEX, communication in [tool.traceflow] of "
        "pyproject.toml, or tf.open(..., communication=[...]).",
        formula=(
            "Kernels that bear the name of a collective, wherever they run. On a stream beside the one that computes "
            "most, and without recognised communication, also kernels with a word for moving data in their name, and "
            "those that an operator with a process group launched, if together they take at least half of the "
            "stream's time."
        ),
        example="A library of one's own sends rows with kernels my::put_rows on stream 33.",
        command="traceflow show communication step.json",
        output=(
            "TF210 warning: 2 kernels on stream 33 of rank 0 may be communication that is not recognised: their names"
            " say so (measured)"
        ),
    ),
    Code(
        "TF211",
        "reported peak too low",
        "The runtime reports less memory for a program than is alive in it at once: on CPU, for one, the figure "
        "leaves temporaries out.",
        "Plan with the live peak.",
        formula=(
            "The largest sum of the sizes of buffers that are alive at one moment of the schedule, against the peak "
            "that the runtime reports for the program."
        ),
        example=(
            "A function sums up the sorted product of a matrix of 64 by 64 with itself, on CPU. The runtime leaves "
            "temporaries out."
        ),
        command="traceflow show memory runs/a",
        output="TF211 warning: the runtime reports a peak of 16,404 B for jit_squared; 32,788 B are alive at once (compiler)",
    ),
    Code(
        "TF212",
        "arguments kept beside results",
        "Arguments of a program could become results of the same size, but the program may not overwrite them, so"
        " that both are in memory.",
        "Donate what is not needed after the call: jax.jit(..., donate_argnums=...).",
        formula=(
            "The sum of the arguments that could be donated, each to a result of its size. It is a finding from 1 % "
            "of the peak and 1 MiB on."
        ),
        example="A step of gradient descent returns parameters of 4 MiB anew, and keeps the old ones.",
        command="traceflow show memory runs/a",
        output=("TF212 info: jit_descent keeps 4,194,304 B of arguments beside results of their size (modelled)"),
    ),
    Code(
        "TF213",
        "much padding in layouts",
        "The compiler stores values in tiles, and fills up those that a dimension does not fill.",
        "Make the dimensions that the layout puts last multiples of the tile, or let a longer one be last.",
        formula=(
            "padding = 1 - bytes of the values / bytes that their layouts take. It is a finding above 10 % of a "
            "program."
        ),
        example=("On a TPU, an array of 1,000 by 3 in bf16 takes tiles of 8 by 128: each row of 3 becomes one of 128."),
        command="traceflow show padding step.hlo.txt",
        output="TF213 info: 98% of what the values of jit_step take is padding (compiler)",
    ),
    Code(
        "TF214",
        "far from what the hardware allows",
        "An operation takes much longer than its FLOPs, its memory traffic or what it sends need at peak rates.",
        "Look at its shapes, its layout and what it is fused with; small work cannot fill a device.",
        formula=(
            "measured / max(FLOPs / peak, bytes / memory bandwidth, payload / link bandwidth). It is a finding above "
            "2, where what is beyond the bound is more than 5 % of the time of all operations."
        ),
        example=(
            "A linear layer on 141 rows in a forward pass of a small BERT on an H100 (h100_bert_small of "
            "AMD-AGI/TraceLens): the work is too small to fill the GPU, and batches or fusion would bring it closer."
        ),
        command="traceflow show budget h100_bert_small.json.gz",
        output="TF214 info: aten::addmm takes 23.9 times what the memory bound allows (derived)",
    ),
    Code(
        "TF215",
        "recomputation",
        "Activations that were thrown away to save memory are computed again in the backward pass.",
        "Keep more of them where memory allows it; what computation hides costs nothing.",
        formula=(
            "Time of operations that were traced again for the backward pass / time of all operations. It is a "
            "finding from 5 % on."
        ),
        example=(
            "A product under torch.utils.checkpoint runs forward, and again within the backward pass: one of three "
            "products of equal length computes what was there."
        ),
        command="traceflow show budget step.json --hardware a100",
        output="TF215 info: 33.3 % of the operations' time computes again what was there before (derived)",
    ),
    Code(
        "TF216",
        "virtual devices wait for threads",
        "Devices that are simulated on a CPU share the threads of the host. Operations that were ready waited "
        "while those threads ran other operations; on the path this shows as idle, since such order is no "
        "dependency.",
        "Simulate fewer devices, or give the host more cores; an accelerator has no such queue.",
        formula=(
            "Time on the path in which a device is idle, its operation is ready, and its thread runs another one / "
            "length of the path. It is a finding from 10 % on."
        ),
        example="Eight virtual devices on a host of two cores run all experts of all tokens.",
        command="traceflow show critical-path demo/masked",
        output=(
            "% of the path waits for threads of the host that run other operations: 8 virtual devices share 16 threads"
        ),
    ),
    Code(
        "TF217",
        "experts have unequal work",
        "One expert gets many times the mean of the assignments, or the experts of one rank multiply more rows "
        "than those of others, which wait for it at the next exchange. The cost is that of a replay in perfect "
        "balance.",
        "Balance the router with an auxiliary loss or a bias, or place copies of hot experts on several ranks.",
        formula=(
            "hot_expert_ratio is the most tokens of an expert / their mean, rank_imbalance_ratio the most rows of a "
            "rank / their mean. It is a finding from 2 or from 1.1 on, with a cost where the trace can be replayed."
        ),
        example=(
            "2,048 assignments of a step go to 16 experts. One of them gets 271 instead of 128, and the ranks without"
            " it wait in every exchange."
        ),
        command="traceflow show moe demo/capacity",
        output="TF217 info: expert 9 of layer 0 on rank 0 gets 13% of the assignments, 2.1 times the mean",
    ),
    Code(
        "TF218",
        "tokens dropped",
        "More tokens chose an expert than its capacity holds; these get nothing from it. A trace does not show it.",
        "Raise the capacity, balance the router, or drop nothing.",
        formula=(
            "dropped = sum over sources and experts of max(0, assigned - capacity). It is a finding above 1 % of the "
            "assignments."
        ),
        example=("The same layer has room for the mean number of assignments and no more: what exceeds it is lost."),
        command="traceflow show moe demo/capacity",
        output="TF218 warning: layer 0 drops 13.2% of its assignments (measured)",
    ),
    Code(
        "TF219",
        "experts multiply rows without a token",
        "Rows that fill up a capacity or an alignment, or that a mask throws away, cost as much as those with a token.",
        "Lower the capacity or the alignment, or multiply groups of unequal length.",
        formula=(
            "(capacity padding + alignment padding + masked rows) / rows that experts multiply. It is a finding above"
            " 10 %."
        ),
        example="Every expert multiplies all tokens; a mask leaves one result in eight.",
        command="traceflow show moe demo/masked",
        output="TF219 info: 88% of the rows that experts of layer 0 multiply hold no token (measured)",
    ),
    Code(
        "TF220",
        "host waits inside the exchange of tokens",
        "The host needs the splits of an all-to-all and waits for the device to count them, so that nothing can "
        "be launched meanwhile.",
        "Keep the splits on the device, fix them with a capacity, or copy them early on a stream of their own.",
        formula=(
            "Blocking calls of the host inside the stages of an exchange: how many, and how long they take in all."
        ),
        example=(
            "A layer counts the rows for each rank on the device, and copies the counts to the host before the "
            "all-to-all."
        ),
        command="traceflow show moe step.json",
        output=(
            "TF220 warning: the host waits for the device 1 times around the exchange of tokens, 6.000 ms in all "
            "(measured)"
        ),
    ),
    Code(
        "TF221",
        "results of experts combined wrongly",
        "What a layer made of the rows that came back is not the sum by token of each row times its gate: a gate "
        "was applied twice or not at all, or rows were taken for those of other tokens.",
        "Apply each gate once, in the expert or when combining, and add up by the token of each row.",
        formula=(
            "out[t] = sum over rows r of token t of g(r) u(r) has to hold within 1e-3 of the largest value. Tried for"
            " a wrong result are g(r) squared, no g(r), and rows by position."
        ),
        example=(
            "A layer multiplies by the gate in the expert, and once more when it combines. What it combined is "
            "attached to the recording."
        ),
        command="traceflow show moe runs/a",
        output=(
            "TF221 error: layer 0 on rank 0: results of experts are combined with each gate applied twice (measured)"
        ),
    ),
    Code(
        "TF222",
        "routing record and trace disagree",
        "An all-to-all moves other rows than follow from the record of its call.",
        "Tell the counts of the very call, with the groups and the capacity that it uses.",
        formula=(
            "Rows that an all-to-all of the trace moves, by its splits, against those that follow from the counts "
            "told for its call."
        ),
        example="A layer tells the counts of the ranks of another group.",
        command="traceflow show moe demo-torch/mistaken",
        output="exchanges in the trace move other rows than recorded (measured)",
    ),
    Code(
        "TF223",
        "idle while communication runs",
        "The trace holds no records of what one stream waited for on another. Much of the path is idle while the "
        "same device communicates on another stream: work that waits for communication looks so.",
        "Take it for exposed communication. Record with synchronisation events, where the platform offers them.",
        formula=(
            "Time on the path in which a device is idle and a stream of it communicates / length of the path. It is a"
            " finding from 10 % on, where the trace holds no synchronisation records."
        ),
        example=(
            "The public trace mi300_resnet_rank0of8 of AMD-AGI/TraceLens: kernels on the stream that computes come "
            "after gaps that the collectives of the other stream fill."
        ),
        command="traceflow show critical-path mi300_resnet_rank0of8.json.gz",
        output=(
            "TF223 warning: 64% of the path is idle while its device communicates: it probably waits (measured, "
            "55.289 ms)"
        ),
    ),
)
