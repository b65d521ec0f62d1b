"""What the words on a page mean, in one sentence each: the tooltips and the section on method share them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from traceflow.result import Provenance

CONCEPTS: Mapping[str, str] = MappingProxyType(
    {
        "participant": "One device of one rank; on a rank without devices, its host.",
        "slice": "The part of an event that no event nested in it covers; time on a lane is counted once.",
        "lag": "The time between the latest thing that something had to wait for and its start: launch latency, "
        "queueing, the return from a call, or nothing known. Replay keeps lags as they were.",
        "critical path": "The chain that leads back from the end of the window, always to what was the latest to "
        "allow the next thing. Its segments tile the window without gap or overlap.",
        "wait": "Of a collective, the time from this participant's arrival until the last one arrived.",
        "transfer": "Of a collective, the time from the last arrival to its end on this participant.",
        "exposed": "Time in which a participant communicated and computed nothing.",
        "removable": "How much shorter the window is when replayed with a perfect network: with every transfer at "
        "zero, and with nobody waiting for anybody either. Exposed time need not be removable.",
        "slack": "How much later a slice could have ended without moving the end of the window. Zero on the path.",
        "saved": "Measured length of the window minus its length when replayed with the change. Savings of "
        "different changes do not add up.",
        "exact": "No latency that was hidden behind something else can change the prediction.",
        "bound": "A latency may have been hidden behind what was made faster, so the true saving can differ.",
        "best case": "The window replayed without one reason to wait. No improvement of that sort alone makes it shorter.",
        "low": "The least that the window can take, however much of each latency was hidden behind something else.",
        "high": "The most that the window can take, however much of each latency was hidden behind something else.",
        "step": "All the work that was launched between the marks of a step, up to the end of the last of it.",
        "window": "What this page explains: one step, or the whole capture from the first work to the last.",
        "steady state": "The steps in which nothing was compiled; warm-up is not in it.",
        "slowdown": "Of a job, its replayed step over its ideal one. Of a part of it, the ideal step with this part as "
        "it was over the ideal one: 1 where the part alone slows nothing down.",
        "redundancy": "FLOPs of one device times the number of devices, over the FLOPs of the program before it was "
        "divided: 1 where no device does what another does as well.",
        "spread": "Longest minus shortest step of the steady state. A smaller difference says nothing.",
    }
)
"""The ideas that the section on method explains."""

_COLUMNS = {
    "rank": "Number of the process among all processes of the job.",
    "state": "Whether something was compiled during the step; if so it is not part of the steady state.",
    "duration": "From the start to the end.",
    "returned": "From the start of the step until its calls had returned to Python.",
    "ready": "From the start of the step until its results were complete on the devices.",
    "fetched": "From the start of the step until its results were on the host.",
    "start": "From the start of the window.",
    "kind": "compute, transfer (a collective after the last arrival), communication (a collective that could not be "
    "split), copy, host, launch (latency of a launch), or idle (a gap that nothing explains).",
    "time on the path": "Sum over the critical path.",
    "share": "Part of the window.",
    "pieces": "How many segments of the path were put together.",
    "name": "As the trace names it.",
    "lane": "The thread, stream or line of the device, as the trace names it.",
    "waited for": "The participant whose arrival, or whose work, ended the wait before it.",
    "edge": "The dependency by which the path reached it.",
    "timeline": "Shows this stretch of time in the timeline.",
    "compute": "Time in which at least one computation ran.",
    "copy": "Time in which at least one copy ran.",
    "busy": "Time in which at least one communication was under way.",
    "overlapped": "Communication that computation hid: busy minus exposed.",
    "idle": "Time in which neither computation nor communication nor a copy ran.",
    "exposed share": "Exposed time as a part of the window.",
    "composition": "Compute, exposed communication, other copies, and idle time, as parts of the window.",
    "operation": "What kind of communication it is.",
    "group": "The ranks or devices that take part.",
    "calls": "How many there are.",
    "participants": "How many took part.",
    "took": "Sum over all executions on all devices; of a collective, the time after its last participant arrived.",
    "measured and bound": "The largest bound, and what the measured time has beyond it.",
    "compute bound": "FLOPs of all executions over the peak rate of one device for their type of number.",
    "memory bound": "Bytes that must at least be read and written, over the bandwidth of a device's memory.",
    "link bound": "Bytes that each end must at least send, over all links of a device in one direction.",
    "ratio": "Measured time over the largest bound; 1 is what the hardware allows.",
    "FLOPs": "Of all executions, loops as often as they ran. A multiplication with an addition is two.",
    "bytes moved": "Read and written by all executions, each operand once.",
    "bytes sent": "By each end of a collective, summed over the executions.",
    "source line": "The line of the program that it comes from.",
    "payload": "What one participant puts in; of several participants the largest.",
    "all payload": "Sum of the payloads.",
    "last to arrive": "Who arrived last, and so whom the others waited for.",
    "longest wait": "The longest wait of a participant.",
    "longest transfer": "The longest transfer of a participant.",
    "most exposed": "The most exposed time of a participant.",
    "sum of waits": "Waits summed over calls and participants.",
    "sum of transfers": "Transfers summed over calls and participants.",
    "sum of exposed": "Exposed time summed over calls and participants.",
    "wait and transfer": "The sum of all waits beside the sum of all transfers.",
    "collective": "Number of the collective in this report.",
    "arrival": "When this participant arrived, from the start of the window.",
    "from": "The sender.",
    "to": "The receiver.",
    "receiver's wait": "How long the receiver waited for the send to be posted, summed over the messages.",
    "reason": "Why it could not be done.",
    "total": "Sum of the durations.",
    "quantity": "What is compared.",
    "difference": "The last run minus the first. One that is smaller than the spread of steps says nothing.",
    "change": "The difference in relation to the first run.",
    "provenance": "Where the figure comes from.",
    "events": "How many events of the trace it concerns.",
    "outcome": "What became of the events.",
    "code": "Stable identifier; `traceflow explain CODE` tells more.",
    "remark": "What else is to be known of it.",
    "source": "The file that was read.",
    "host": "The machine, as the trace names it.",
    "key": "A field of the trace's own description of itself.",
    "value": "What the trace says.",
    "affects": "The figures that this limits.",
    "figure": "The figure that is missing.",
    "measured": "From the first start to the last end of the step.",
    "replayed": "The step without the lags that the schedule does not explain.",
    "ideal": "The replayed step with every operation as long as is typical of its type: the mean of computations, the "
    "median of transfers, over all workers and steps.",
    "typical": "The mean of computations, the median of transfers, over all workers and steps.",
    "cost": "How much shorter the mean replayed step is with this part alone at typical durations; below zero where "
    "it makes up for others.",
    "explained": "Cost as a part of the excess, which is the replayed step minus the ideal one. Above 100 % where "
    "others are faster than is typical.",
    "stage": "Position in the pipeline, from 0.",
    "dp rank": "Which of the data parallel copies of the model.",
    "program": "A compiled program.",
    "live peak": "The most that is alive at once in one execution, by the compiler's own simulation of the heap.",
    "packed": "What the compiler set aside for the program, gaps between buffers included.",
    "reported peak": "What the runtime reports as the peak.",
    "kept": "Alive during the whole program: arguments, constants and results.",
    "temporaries": "Set aside for what comes and goes within the program.",
    "aliased": "Arguments whose memory results take over.",
    "buffer": "The value in it, as the compiler calls it, {1} being a part of a tuple; an argument as in the source.",
    "size": "Bytes in memory.",
    "of the peak": "Part of everything that is alive then.",
    "padding": "Bytes in memory beyond the elements themselves.",
    "holds": "An argument, a constant, a result, or a temporary.",
    "born": "The instruction that it is allocated for.",
    "dies": "The last instruction that had allocated when it was freed.",
    "allocated peak": "The most that the allocator had handed out.",
    "reached at": "From the start of the capture.",
    "reserved": "The most that the allocator held, handed out or not.",
    "use": "What PyTorch's profiler says that memory was used for.",
    "phase": "Forward, backward or optimizer; each lasts until something of another begins.",
    "interface": "Between what the bytes were moved.",
    "moved": "Of copies, the sizes that were recorded; of device memory, operands and results of what was executed.",
    "shape": "With its layout, as HLO text writes it.",
    "values": "How many values have it.",
    "array": "An argument or a result of a program, or a value within it.",
    "whole": "Its shape on all devices together.",
    "each": "What each device holds.",
    "role": "An argument, a result, or a value that the program constrains.",
    "intended": "How the program, or its author beside it, says that it is to lie: per dimension the axes that split it.",
    "compiled": "How the compiler laid it out.",
    "verdict": "Whether it lies as intended.",
    "axes": "The axes of the mesh along which devices take part.",
    "expected": "Whether what the author wrote calls for it: an explicit collective, a sum over an index that is split, "
    "a change of layout that is stated, or what fully sharded data parallelism means.",
    "sends": "Bytes that each device sends in one execution.",
    "executions": "On all devices together.",
    "time in all": "Sum over the executions on all devices, waiting included.",
    "assembles": "The arguments of which it makes the whole, or the whole of a layer.",
    "written as": "The scope that it comes from.",
    "instructions": "As the compiler names them.",
    "who": "A worker, or a stage where all of its workers are alike.",
    "cause": "The sort of its work that costs most.",
}

DEFINITIONS: Mapping[str, str] = MappingProxyType({**CONCEPTS, **_COLUMNS})
"""The definition of every heading and of every figure."""

PROVENANCES: Mapping[Provenance, str] = MappingProxyType(
    {
        Provenance.MEASURED: "taken from timestamps or counters of the trace, or a sum or difference of them",
        Provenance.COMPILER: "an estimate of the compiler: static costs, buffer assignment",
        Provenance.DERIVED: "computed from shapes and stated intent",
        Provenance.MODELLED: "what replay predicts for a change that was not made",
    }
)
"""Where a figure can come from."""
