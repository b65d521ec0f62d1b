"""The tables of a run: their names, and each column with its type, its unit and where it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass

VERSION = 1
"""Counted up when a column changes its meaning or goes."""

# table: what a row is
#   column type unit provenance what it is      `?` marks what may be unknown, which is null
_TEXT = """
ranks: One row per rank.
  rank int32 - recorded number of the rank
  host string? - recorded name of the machine
  world_size int32? - recorded how many ranks there were
  source string - recorded file that it came from
  clock int32 - derived ranks with the same number are on one clock: their times can be compared
lanes: One row per host thread, stream or device line.
  lane int32 - recorded number of the lane
  rank int32 - recorded
  device int32? - recorded null on host threads
  kind string - recorded `thread`, `stream`, `line` (of a TPU), or `worker` (a virtual device on a thread)
  stream int64? - recorded number of the stream
  name string - recorded
events: One row per event.
  event int64 - recorded number of the event
  rank int32 - recorded
  device int32? - recorded null on the host
  lane int32 - recorded row of `lanes`
  name string - recorded
  kind string - derived `host`, `call`, `wait`, `compute`, `copy` or `communication`
  start_ns int64 ns measured from the start of the capture
  end_ns int64 ns measured
  duration_ns int64 ns measured `end_ns - start_ns`
  step int64? - derived step that it belongs to: of device work, that of its launch
  correlation int64? - recorded joins calls and what they launched, within a rank
  launched_by int64? - derived event of the call that launched it
  program int64? - recorded row of `programs` that it executes
  instruction int32? - derived row of `instructions` in that program
  run int64? - recorded execution of the program, equal on all devices that took part
steps: One row per step and rank that marks it.
  step int64 - recorded
  rank int32 - recorded
  start_ns int64 ns measured
  duration_ns int64 ns measured from the mark to the end of what it launched
  returned_ns int64? ns measured when the call had returned
  ready_ns int64? ns measured when the devices had finished
  fetched_ns int64? ns measured when the result was on the host
  compiled bool - derived whether something was compiled in it
segments: The critical path: one row per segment, which tile the window.
  segment int64 - derived place on the path, from 0
  start_ns int64 ns derived
  duration_ns int64 ns derived
  kind string - derived `compute`, `transfer`, `communication`, `copy`, `host`, `launch` or `idle`
  rank int32 - recorded
  device int32? - recorded null for host work
  lane string - recorded name of the lane
  name string - recorded
  operation string? - compiler what a compiled instruction does
  scope string? - compiler named scopes that it was written in
  source string? - compiler file and line
  edge string? - derived how it was reached
  waiting_for_rank int32? - derived who ended the wait
  waiting_for_device int32? - derived
  reason string? - derived of an idle segment, why its cause is not known
  clipped bool - derived whether its work began before the window
communication: One row per participant: a device, or a rank without devices.
  rank int32 - recorded
  device int32? - recorded
  window_ns int64 ns derived length of the window
  compute_ns int64 ns measured
  copy_ns int64? ns measured
  busy_ns int64 ns measured in communication
  exposed_ns int64 ns measured in communication while nothing was computed
  overlapped_ns int64 ns measured `busy_ns - exposed_ns`
  idle_ns int64? ns measured
collectives: One row per collective whose participants are all known.
  id string - derived number of the collective
  op string - recorded
  name string - recorded of its event on the first participant
  group_name string - recorded process group or replica group
  dimension string? - derived of the mesh or the parallel plan that its group lies along
  purpose string? - derived what it is for, such as `parameter gather`
  phase string? - derived `forward`, `backward` or `update`
  payload_bytes int64? bytes recorded most that one participant puts in
  participants int32 - derived
  last_rank int32 - measured who arrived last
  last_device int32? - measured
  start_skew_ns int64 ns measured from the first arrival to the last
  end_skew_ns int64 ns measured from the first end to the last
participants: One row per participant of a collective.
  id string - derived of the collective
  rank int32 - recorded
  device int32? - recorded
  payload_bytes int64? bytes recorded
  arrival_ns int64 ns measured
  wait_ns int64 ns measured until the last had arrived
  transfer_ns int64 ns measured from then on
  end_ns int64 ns measured
  exposed_ns int64 ns measured of the call, while this participant computed nothing
messages: One row per transfer from one participant to another.
  id string - derived
  source_rank int32 - recorded
  source_device int32? - recorded
  destination_rank int32 - recorded
  destination_device int32? - recorded
  dimension string? - derived of the mesh or the parallel plan that its group lies along
  purpose string? - derived what it is for, such as `parameter gather`
  phase string? - derived `forward`, `backward` or `update`
  payload_bytes int64? bytes recorded
  posted_ns int64 ns measured start of the send
  received_ns int64 ns measured end of the receive
  wait_ns int64 ns measured of the receiver, until the send was posted
slices: One row per piece of work, or of waiting, of an event.
  slice int64 - derived number of the slice
  event int64? - derived row of `events`; null where several participants meet
  start_ns int64 ns measured
  end_ns int64 ns measured
  kind string - derived `compute`, `transfer`, `communication`, `copy`, `host`, `blocked`, `arrived` or `join`
edges: One row per dependency: the target cannot come before the source.
  source_slice int64 - derived
  source_end bool - derived whether it is the end of that slice that binds, or its start
  target_slice int64 - derived
  target_end bool - derived
  kind string - derived such as `launch`, `stream-order` or `rendezvous`
  binds bool - derived whether, of all dependencies of the target, this is the one that held it up
programs: One row per compiled program.
  program int64 - recorded number of the program
  name string - compiler
  instruction_count int32 - compiler
  executed bool? - recorded null where nothing tells
  live_peak_bytes int64? bytes compiler most that is alive at once, on one device
  scheduled_peak_bytes int64? bytes derived the same by the schedule alone, where the compiler does not tell
  persistent_bytes int64? bytes compiler alive all the time
  temp_bytes int64? bytes compiler
  argument_bytes int64? bytes compiler
  output_bytes int64? bytes compiler
instructions: One row per instruction of a program.
  program int64 - recorded row of `programs`
  instruction int32 - compiler number within the program
  name string - compiler
  opcode string - compiler
  computation string - compiler computation that it belongs to
  shape string - compiler of its result
  output_bytes int64? bytes compiler
  scope string? - compiler named scopes and transformations that it was written in
  source string? - compiler file and line
  sharding string? - compiler
buffers: One row per buffer that is alive at the peak of its program.
  program int64 - recorded row of `programs`
  name string - compiler
  size_bytes int64 bytes compiler with padding
  logical_bytes int64? bytes derived of the values alone
  kind string - compiler `argument`, `constant`, `result` or `temporary`
  opcode string - compiler of what made it
  source string? - compiler file and line
  born string - compiler instruction that it is allocated for
  dies string - compiler last instruction before it is freed
  argument string? - recorded what the source calls an argument
memory_events: One row per allocation or release.
  time_ns int64 ns measured
  rank int32 - recorded
  device int32? - recorded null for memory of the host
  source string - recorded who tells: `event`, `snapshot` or `timeline`; never add up several
  change_bytes int64 bytes measured negative for a release
  allocated_bytes int64? bytes measured in all after it
  reserved_bytes int64? bytes measured what the allocator holds after it, used or not
  use string - recorded such as `parameter`, `activation` or `gradient`
allocators: One row per allocator and device.
  rank int32 - recorded
  device int32? - recorded null for memory of the host
  source string - recorded who tells: `event`, `snapshot` or `timeline`; never add up several
  events int64 - recorded
  peak_bytes int64? bytes measured most that was handed out
  peak_time_ns int64? ns measured when that was
  reserved_peak_bytes int64? bytes measured most that was held, used or not
traffic: One row per device and interface.
  rank int32 - recorded
  device int32? - recorded
  interface string - derived between what the bytes were moved
  size_bytes int64 bytes derived
  window_ns int64 ns measured in how long
  evidence string - derived where the bytes come from: `measured`, `compiler` or `derived`
operations: One row per operation: an instruction of a program, an operator of PyTorch, a collective, a kernel or a copy.
  kind string - derived `instruction`, `operator`, `collective`, `kernel` or `copy`
  name string - recorded
  detail string - compiler opcode or shapes
  program string? - compiler name of the program
  source string? - compiler file and line
  executions int64 - measured on all devices together
  flops int64? - derived of all executions
  memory_bytes int64? bytes derived read and written by all executions, each operand once
  payload_bytes int64? bytes derived that each end of a collective sends
  measured_ns int64 ns measured sum over all executions
  waits bool - derived whether that holds waiting that could not be told apart
  compute_bound_ns int64? ns derived `flops` over the peak rate of the hardware
  memory_bound_ns int64? ns derived `memory_bytes` over its bandwidth
  link_bound_ns int64? ns derived `payload_bytes` over its links
  recomputed bool? - derived whether it computes again what was there before
moe_layers: One row per layer with experts, all recorded steps of the window together.
  layer int32 - recorded
  calls int64 - recorded
  experts int32 - recorded
  topk int32 - recorded experts of each token
  tokens int64? - recorded
  assignments int64 - recorded pairs of a token and an expert, the dropped ones included
  dropped int64 - recorded
  executed_rows int64 - derived rows that experts multiply
  capacity_padding_rows int64 - derived
  alignment_padding_rows int64 - derived
  masked_rows int64 - derived multiplied, and then thrown away
  hot_expert int32 - derived expert with most assignments
  hot_expert_ratio double? - derived its assignments over the mean
  rank_imbalance_ratio double? - derived rows of the rank that multiplies most, over the mean
  dispatch_bytes int64? bytes derived to the experts
  combine_bytes int64? bytes derived back
  remote_bytes int64? bytes derived of both, what leaves its participant
  useful_bytes int64? bytes derived of that, rows with a token
  balance_saved_ns int64? ns derived what perfect balance would save, by replay
moe_experts: One row per expert of a layer.
  layer int32 - recorded row of `moe_layers`
  expert int32 - recorded
  assignments int64 - recorded
  executed_rows int64 - derived
moe_stages: One row per stage of the experts' work, direction and participant.
  stage string - recorded `route`, `dispatch`, `experts`, `combine` and the like
  direction string - derived `forward` or `backward`
  rank int32 - recorded
  device int32? - recorded
  duration_ns int64 ns measured waits included
  work_ns int64 ns measured without waits
  path_ns int64 ns derived of that, what lies on the critical path
arrays: One row per argument, result and constraint of programs that run on several devices.
  program string - compiler
  name string - recorded
  role string - derived `argument`, `result` or `constraint`
  dtype string - compiler
  global_shape string - compiler on all devices together
  local_shape string? - compiler on each device
  intended string? - recorded how it is to lie; null where that is not stated
  compiled string? - compiler how it lies
  matches bool? - derived null where it cannot be told
  source string? - recorded file and line
program_collectives: One row per collective in programs that run on several devices.
  program string - compiler
  name string - compiler
  op string - compiler
  mesh_axes string? - derived axes of the mesh along which devices take part; null where no name fits
  payload_bytes int64? bytes derived that each device sends in one execution
  expected bool? - derived whether what the author wrote calls for it
  executions int64? - measured on all devices together
  total_ns int64? ns measured sum over the executions
  scope string? - compiler
  source string? - compiler file and line
findings: One row per finding on steps, the critical path, communication and memory.
  code string - derived as `traceflow explain` knows it
  severity string - derived `info`, `warning` or `error`
  title string - derived
  provenance string - derived of its figures
  suggestion string - derived
  cost_ns int64? ns derived
"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    type: str  # as Arrow names it: int32, int64, double, string or bool
    nullable: bool
    unit: str  # ns or bytes, "" for what has none
    provenance: str  # recorded, measured, derived or compiler
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    name: str
    about: str
    columns: tuple[Column, ...]


def _table(lines: str) -> Table:
    head, *columns = lines.split("\n  ")
    name, about = head.split(": ", 1)
    return Table(name, about, tuple(map(_column, columns)))


def _column(line: str) -> Column:
    name, kind, unit, provenance, *about = line.split(maxsplit=4)
    return Column(name, kind.rstrip("?"), kind.endswith("?"), unit.strip("-"), provenance, "".join(about))


TABLES = {table.name: table for table in map(_table, re.split(r"\n(?! )", _TEXT.strip()))}
"""All tables by name, in the order in which the documentation has them."""
