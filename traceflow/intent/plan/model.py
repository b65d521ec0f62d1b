"""What a parallel plan is for: the sizes of a model, of its batches, and how the parts are moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from traceflow.errors import TraceflowError

ITEM_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "f8": 1}
DISPATCHERS = ("alltoall", "allgather", "flex")
OPTIMIZERS = ("replicated", "distributed", "muon")
BALANCING = ("none", "local", "global")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a model whose every layer has routed experts; each is a SwiGLU of three matrices.

    Example:
        >>> model = Model(hidden=7168, experts=384, topk=6, expert_hidden=3072, layers=61)
        >>> model.expert_parameters
        66060288
    """

    hidden: int  # h, width of a token
    experts: int  # E, routed experts of a layer
    topk: int  # k, routed experts per token
    expert_hidden: int  # f, width inside an expert
    layers: int = 1
    shared_experts: int = 0  # of a layer; they meet every token
    shared_hidden: int | None = None  # width inside each; as in a routed one where None
    mtp_layers: int = 0  # layers that predict further tokens, behind the last
    hash_layers: int = 0  # of all layers, how many look the experts up by the token's number
    latent: int | None = None  # width of what is sent to experts, where a projection makes it differ from h
    capacity_factor: float | None = None  # None drops nothing
    residual_streams: int = 1  # how many times as wide as h is what stages of the pipeline hand on (mHC)
    dense_parameters: int | None = None  # that a rank holds of a layer besides experts, router and projections
    attention_tp: int | None = None  # the largest TP that its attention allows
    dtype: str = "bf16"
    router_dtype: str = "f32"  # of the probabilities

    def __post_init__(self) -> None:
        """Refuse sizes that no model has.

        Raises:
            TraceflowError: TF149.
        """
        _check_sizes(self, at_least_0=("shared_experts", "mtp_layers", "hash_layers", "dense_parameters"))
        _check_name("dtype", self.dtype, ITEM_BYTES)
        _check_name("router dtype", self.router_dtype, ITEM_BYTES)
        if self.topk > self.experts:
            raise _refused(f"top-{self.topk} of {self.experts} experts", "choose at most as many as there are")

    @property
    def routed_width(self) -> int:
        """Width of what is sent to experts."""
        return self.latent or self.hidden

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert: 3 x width x f."""
        return 3 * self.routed_width * self.expert_hidden

    @property
    def shared_width(self) -> int:
        """Width inside all shared experts of a layer together."""
        return self.shared_experts * (self.shared_hidden or self.expert_hidden)

    @property
    def shared_parameters(self) -> int:
        """Parameters of the shared experts of a layer: 3 x h x their width."""
        return 3 * self.hidden * self.shared_width

    @property
    def item_bytes(self) -> int:
        """Of an element of activations and weights."""
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step works on: B sequences of S tokens, b at a time on each copy of the model."""

    sequence: int  # S
    micro_batch: int = 1  # b
    global_batch: int | None = None  # B

    def __post_init__(self) -> None:
        """Refuse sizes below 1.

        Raises:
            TraceflowError: TF149.
        """
        _check_sizes(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How tokens, weights and gradients are moved."""

    dispatcher: str = "alltoall"  # or allgather, flex
    optimizer: str = "replicated"  # on every copy; distributed: each copy updates a part; muon: some whole matrices
    gradient_dtype: str = "f32"
    balancing: str = "none"  # counts of the experts are summed up: local over TPxCP, global over TPxDPxCP
    balancing_vectors: int = 1  # of length E: 2 where mean probabilities go with the counts
    virtual_experts: int = 0  # copies of others' experts that a rank has room for
    overlap_shared_expert: bool = False
    overlap_batches: bool = False  # the experts' exchange of one micro-batch with the computation of another

    def __post_init__(self) -> None:
        """Refuse names that are not known.

        Raises:
            TraceflowError: TF149.
        """
        _check_sizes(self, at_least_0=("virtual_experts",))
        _check_name("dispatcher", self.dispatcher, DISPATCHERS)
        _check_name("optimizer", self.optimizer, OPTIMIZERS)
        _check_name("balancing", self.balancing, BALANCING)
        _check_name("gradient dtype", self.gradient_dtype, ITEM_BYTES)

    @property
    def gradient_bytes(self) -> int:
        """Of an element of the gradients that are reduced; Muon exchanges them in bf16."""
        return 2 if self.optimizer == "muon" else ITEM_BYTES[self.gradient_dtype]


def _check_sizes(sizes: Model | Batch | Training, at_least_0: tuple[str, ...] = ()) -> None:
    for name, size in _numbers(sizes):
        least = 0 if name in at_least_0 else 1
        if name == "capacity_factor":
            if not 0 < size < float("inf"):
                raise _refused(f"a capacity factor of {size}", "give one above 0")
        elif size < least:
            raise _refused(f"{name} of {size}", f"give at least {least}")


def _numbers(sizes: Model | Batch | Training) -> Iterator[tuple[str, float]]:
    for field in fields(sizes):
        value = getattr(sizes, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield field.name, value


def _check_name(what: str, name: str, known: dict[str, int] | tuple[str, ...]) -> None:
    if name not in known:
        raise _refused(f"no {what} {name}", f"name one of {', '.join(known)}")


def _refused(why: str, hint: str) -> TraceflowError:
    return TraceflowError("TF149", "no such model", why, hint)
