"""The protobuf messages of XSpace and HLO, built at run time from one table.

Source of the numbers: XLA's `xplane.proto`, `hlo.proto` and `xla_data.proto`. Only the fields that traceflow reads
are declared; protobuf skips all others, so older and newer files decode alike.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "traceflow"
_OPTIONAL, _REPEATED = 1, 3

# message: number type name, ...   `*` marks a repeated field, `?` a member of the oneof that the message has.
_TABLE = """
XSpace: 1 XPlane* planes, 2 string* errors, 3 string* warnings, 4 string* hostnames
XPlane: 1 int64 id, 2 string name, 3 XLine* lines, 4 EventMetadataEntry* event_metadata,
    5 StatMetadataEntry* stat_metadata, 6 XStat* stats
XSpaceOfBytes: 1 XPlaneOfBytes* planes, 2 string* errors, 3 string* warnings, 4 string* hostnames
XPlaneOfBytes: 1 int64 id, 2 string name, 3 bytes* lines, 4 EventMetadataEntry* event_metadata,
    5 StatMetadataEntry* stat_metadata, 6 XStat* stats
EventMetadataEntry: 1 int64 key, 2 XEventMetadata value
StatMetadataEntry: 1 int64 key, 2 XStatMetadata value
XLine: 1 int64 id, 2 string name, 3 int64 timestamp_ns, 4 XEvent* events
XEvent: 1 int64 metadata_id, 2 int64 offset_ps, 3 int64 duration_ps, 4 XStat* stats
XStat: 1 int64 metadata_id, 2 double? double_value, 3 uint64? uint64_value, 4 int64? int64_value,
    5 string? str_value, 6 bytes? bytes_value, 7 uint64? ref_value
XEventMetadata: 1 int64 id, 2 string name, 4 string display_name, 5 XStat* stats
XStatMetadata: 1 int64 id, 2 string name

HloProto: 1 HloModuleProto hlo_module, 3 BufferAssignmentProto buffer_assignment
HloModuleProto: 1 string name, 3 HloComputationProto* computations, 5 int64 id, 6 int64 entry_computation_id,
    7 HloScheduleProto schedule, 12 OpSharding spmd_output_sharding, 14 OpSharding* spmd_parameters_shardings,
    15 DeviceAssignmentProto device_assignment, 17 StackFrameIndexProto stack_frame_index,
    19 FrontendAttributes frontend_attributes
HloComputationProto: 1 string name, 2 HloInstructionProto* instructions, 5 int64 id, 6 int64 root_id
HloInstructionProto: 1 string name, 2 string opcode, 3 ShapeProto shape, 7 OpMetadata metadata,
    8 LiteralProto literal, 9 int64 parameter_number, 11 string fusion_kind, 13 int64 tuple_index, 14 int64* dimensions, 15 Window window,
    16 ConvolutionDimensionNumbers convolution_dimension_numbers, 17 SliceDimensions* slice_dimensions, 28 string custom_call_target,
    30 DotDimensionNumbers dot_dimension_numbers, 35 int64 id, 36 int64* operand_ids,
    37 int64* control_predecessor_ids, 38 int64* called_computation_ids, 40 OpSharding sharding,
    43 bytes backend_config,
    49 ReplicaGroup* replica_groups, 50 int64 feature_group_count, 52 SourceTarget* source_target_pairs,
    58 int64 batch_group_count, 63 string comparison_direction, 68 FrontendAttributes frontend_attributes,
    87 CollectiveDeviceListProto collective_device_list, 90 RaggedDotDimensionNumbers ragged_dot_dimension_numbers,
    92 IotaReplicaGroupListProto iota_collective_device_list,
    93 MeshAxesReplicaGroupListProto mesh_axes_replica_group_list
LiteralProto: 1 ShapeProto shape, 2 bool* preds, 4 int32* s32s, 5 int64* s64s, 6 uint32* u32s, 7 uint64* u64s
SliceDimensions: 1 int64 start, 2 int64 limit, 3 int64 stride
FrontendAttributes: 1 AttributeEntry* map
AttributeEntry: 1 string key, 2 string value
OpSharding: 1 int32 type, 3 int64* tile_assignment_dimensions, 4 int64* tile_assignment_devices,
    5 OpSharding* tuple_shardings, 6 bool replicate_on_last_tile_dim, 8 int32* last_tile_dims,
    9 int64* iota_reshape_dims, 10 int32* iota_transpose_perm
ShapeProto: 2 int32 element_type, 3 int64* dimensions, 4 ShapeProto* tuple_shapes, 5 LayoutProto layout,
    6 bool* is_dynamic_dimension
LayoutProto: 1 int64* minor_to_major, 6 TileProto* tiles, 7 int64 element_size_in_bits, 8 int64 memory_space,
    16 int64 tail_padding_alignment_in_elements
TileProto: 1 int64* dimensions
DotDimensionNumbers: 1 int64* lhs_contracting_dimensions, 2 int64* rhs_contracting_dimensions,
    3 int64* lhs_batch_dimensions, 4 int64* rhs_batch_dimensions
RaggedDotDimensionNumbers: 1 DotDimensionNumbers dot_dimension_numbers
Window: 1 WindowDimension* dimensions
WindowDimension: 1 int64 size, 2 int64 stride, 3 int64 padding_low, 4 int64 padding_high, 5 int64 window_dilation,
    6 int64 base_dilation
ConvolutionDimensionNumbers: 3 int64 kernel_input_feature_dimension, 4 int64 kernel_output_feature_dimension,
    6 int64* kernel_spatial_dimensions, 7 int64 input_batch_dimension, 8 int64 input_feature_dimension,
    9 int64 output_batch_dimension, 10 int64 output_feature_dimension, 11 int64* input_spatial_dimensions,
    12 int64* output_spatial_dimensions
BufferAssignmentProto: 1 LogicalBufferProto* logical_buffers, 3 BufferAllocationProto* buffer_allocations,
    4 HeapSimulatorTrace* heap_simulator_traces
LogicalBufferProto: 1 int64 id, 2 int64 size, 3 Location defined_at, 4 int64 color
Location: 2 string instruction_name, 3 int64* shape_index, 4 int64 instruction_id
BufferAllocationProto: 1 int64 index, 2 int64 size, 3 bool is_thread_local, 5 bool is_entry_computation_parameter,
    6 int64 parameter_number, 7 bool maybe_live_out, 8 int64 color, 9 Assigned* assigned, 11 bool is_tuple,
    12 bool is_constant, 13 bool is_parameter_aliased_with_output
Assigned: 1 int64 logical_buffer_id, 2 int64 offset, 3 int64 size
HeapSimulatorTrace: 1 Event* events, 2 bool whole_module_simulation, 3 int64 buffer_allocation_index
Event: 1 int32 kind, 2 int64 buffer_id, 3 string computation_name, 4 string instruction_name,
    5 int64 share_with_canonical_id
OpMetadata: 2 string op_name, 3 string source_file, 4 int32 source_line, 15 int32 stack_frame_id
HloScheduleProto: 1 SequencesEntry* sequences
SequencesEntry: 1 int64 key, 2 InstructionSequence value
InstructionSequence: 1 int64* instruction_ids
DeviceAssignmentProto: 1 int32 replica_count, 2 int32 computation_count, 3 ComputationDevice* computation_devices
ComputationDevice: 1 int64* replica_device_ids
StackFrameIndexProto: 1 string* file_names, 2 string* function_names, 3 FileLocation* file_locations,
    4 StackFrame* stack_frames
FileLocation: 1 int32 file_name_id, 2 int32 function_name_id, 3 int32 line
StackFrame: 1 int32 file_location_id, 2 int32 parent_frame_id
ReplicaGroup: 1 int64* replica_ids
SourceTarget: 1 int64 source, 2 int64 target
CollectiveDeviceListProto: 1 ReplicaGroup* replica_groups, 2 IotaReplicaGroupListProto iota_replica_group_list
IotaReplicaGroupListProto: 1 int64 num_replica_groups, 2 int64 num_devices_per_group,
    3 int64* iota_reshape_dims, 4 int32* iota_transpose_perm
MeshAxesReplicaGroupListProto: 1 MeshProto mesh, 2 AxisRefProto* axes
MeshProto: 1 MeshAxis* axes, 2 int64* device_ids, 3 IotaTransform iota_transform
MeshAxis: 1 string name, 2 int64 size
IotaTransform: 1 int64* reshape_dims, 2 int64* transpose_perm
AxisRefProto: 1 int64 mesh_axis_index, 2 SubAxis sub_axis_info
SubAxis: 1 int64 pre_size, 2 int64 size
"""


def message(name: str) -> Any:
    r"""The class of a message in the table.

    Args:
        name: As the table names it, such as ``"XSpace"`` or ``"HloProto"``.

    Returns:
        A protobuf message class, whose ``FromString`` decodes bytes.

    Raises:
        KeyError: The table has no such message.

    Example:
        >>> message("XLine").FromString(b"\x12\x06python").name
        'python'
    """
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return pool


@cache
def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for line in _TABLE.replace("\n    ", " ").strip().splitlines():
        if line:
            name, fields = line.split(": ")
            _declare(file.message_type.add(name=name), fields.split(", "))
    return file


def _declare(into: descriptor_pb2.DescriptorProto, fields: list[str]) -> None:
    for text in fields:
        number, kind, name = text.split()
        field = into.field.add(name=name, number=int(number), label=_REPEATED if kind.endswith("*") else _OPTIONAL)
        plain = kind.rstrip("*?")
        if plain[0].isupper():
            field.type_name = f".{_PACKAGE}.{plain}"
        else:
            field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{plain.upper()}")
        if kind.endswith("?"):
            if not into.oneof_decl:
                into.oneof_decl.add(name="value")
            field.oneof_index = 0
