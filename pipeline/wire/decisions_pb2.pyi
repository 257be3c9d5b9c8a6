from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class View(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VIEW_ROUTING: _ClassVar[View]
    VIEW_FULL: _ClassVar[View]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNKNOWN: _ClassVar[State]
    STATE_HEALTHY: _ClassVar[State]
    STATE_DEGRADED: _ClassVar[State]
    STATE_OPEN: _ClassVar[State]
    STATE_HALF_OPEN: _ClassVar[State]
    STATE_DRAINING: _ClassVar[State]

class Authority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTHORITY_OBSERVE: _ClassVar[Authority]
    AUTHORITY_VETO: _ClassVar[Authority]
    AUTHORITY_WEIGH: _ClassVar[Authority]
    AUTHORITY_ACT: _ClassVar[Authority]
VIEW_ROUTING: View
VIEW_FULL: View
STATE_UNKNOWN: State
STATE_HEALTHY: State
STATE_DEGRADED: State
STATE_OPEN: State
STATE_HALF_OPEN: State
STATE_DRAINING: State
AUTHORITY_OBSERVE: Authority
AUTHORITY_VETO: Authority
AUTHORITY_WEIGH: Authority
AUTHORITY_ACT: Authority

class GetRequest(_message.Message):
    __slots__ = ("pools", "view")
    POOLS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedScalarFieldContainer[str]
    view: View
    def __init__(self, pools: _Optional[_Iterable[str]] = ..., view: _Optional[_Union[View, str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("agent_id", "pools", "view", "instance", "epoch")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    pools: _containers.RepeatedScalarFieldContainer[str]
    view: View
    instance: str
    epoch: int
    def __init__(self, agent_id: _Optional[str] = ..., pools: _Optional[_Iterable[str]] = ..., view: _Optional[_Union[View, str]] = ..., instance: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("epoch", "time_unix_ns", "valid_for_ms", "instance", "full", "from_epoch", "endpoints", "removed", "pools", "events", "unmatched")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_MS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    time_unix_ns: int
    valid_for_ms: int
    instance: str
    full: bool
    from_epoch: int
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    removed: _containers.RepeatedCompositeFieldContainer[Tombstone]
    pools: _containers.RepeatedCompositeFieldContainer[Pool]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    unmatched: _containers.RepeatedCompositeFieldContainer[Unmatched]
    def __init__(self, epoch: _Optional[int] = ..., time_unix_ns: _Optional[int] = ..., valid_for_ms: _Optional[int] = ..., instance: _Optional[str] = ..., full: _Optional[bool] = ..., from_epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[Tombstone, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[Pool, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., unmatched: _Optional[_Iterable[_Union[Unmatched, _Mapping]]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("id", "pool", "address", "zone", "weight", "state", "admission", "node", "engine", "role", "models", "confidence", "reasons", "rule", "decided_weight", "decided_state", "score")
    ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DECIDED_STATE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    id: str
    pool: str
    address: str
    zone: str
    weight: int
    state: State
    admission: float
    node: str
    engine: str
    role: str
    models: _containers.RepeatedScalarFieldContainer[str]
    confidence: float
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    rule: str
    decided_weight: int
    decided_state: State
    score: float
    def __init__(self, id: _Optional[str] = ..., pool: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., weight: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., admission: _Optional[float] = ..., node: _Optional[str] = ..., engine: _Optional[str] = ..., role: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., confidence: _Optional[float] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., rule: _Optional[str] = ..., decided_weight: _Optional[int] = ..., decided_state: _Optional[_Union[State, str]] = ..., score: _Optional[float] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("signal", "value", "peer_median", "points", "observer")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PEER_MEDIAN_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVER_FIELD_NUMBER: _ClassVar[int]
    signal: str
    value: float
    peer_median: float
    points: float
    observer: str
    def __init__(self, signal: _Optional[str] = ..., value: _Optional[float] = ..., peer_median: _Optional[float] = ..., points: _Optional[float] = ..., observer: _Optional[str] = ...) -> None: ...

class Tombstone(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: str
    epoch: int
    def __init__(self, id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("name", "authority", "frozen", "off", "note")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    OFF_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    name: str
    authority: Authority
    frozen: bool
    off: bool
    note: str
    def __init__(self, name: _Optional[str] = ..., authority: _Optional[_Union[Authority, str]] = ..., frozen: _Optional[bool] = ..., off: _Optional[bool] = ..., note: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("time_unix_ns", "kind", "endpoint", "pool", "text")
    TIME_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time_unix_ns: int
    kind: str
    endpoint: str
    pool: str
    text: str
    def __init__(self, time_unix_ns: _Optional[int] = ..., kind: _Optional[str] = ..., endpoint: _Optional[str] = ..., pool: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Unmatched(_message.Message):
    __slots__ = ("id", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    why: str
    def __init__(self, id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Override(_message.Message):
    __slots__ = ("scope", "target", "action", "value", "owner", "reason", "expires_unix_ns", "source")
    class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCOPE_UNSPECIFIED: _ClassVar[Override.Scope]
        SCOPE_ENDPOINT: _ClassVar[Override.Scope]
        SCOPE_NODE: _ClassVar[Override.Scope]
        SCOPE_POOL: _ClassVar[Override.Scope]
        SCOPE_ALL: _ClassVar[Override.Scope]
    SCOPE_UNSPECIFIED: Override.Scope
    SCOPE_ENDPOINT: Override.Scope
    SCOPE_NODE: Override.Scope
    SCOPE_POOL: Override.Scope
    SCOPE_ALL: Override.Scope
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[Override.Action]
        ACTION_PIN: _ClassVar[Override.Action]
        ACTION_CAP: _ClassVar[Override.Action]
        ACTION_DRAIN: _ClassVar[Override.Action]
        ACTION_EXCLUDE: _ClassVar[Override.Action]
        ACTION_HOLD: _ClassVar[Override.Action]
        ACTION_NEUTRAL: _ClassVar[Override.Action]
        ACTION_OFF: _ClassVar[Override.Action]
    ACTION_UNSPECIFIED: Override.Action
    ACTION_PIN: Override.Action
    ACTION_CAP: Override.Action
    ACTION_DRAIN: Override.Action
    ACTION_EXCLUDE: Override.Action
    ACTION_HOLD: Override.Action
    ACTION_NEUTRAL: Override.Action
    ACTION_OFF: Override.Action
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    scope: Override.Scope
    target: str
    action: Override.Action
    value: int
    owner: str
    reason: str
    expires_unix_ns: int
    source: str
    def __init__(self, scope: _Optional[_Union[Override.Scope, str]] = ..., target: _Optional[str] = ..., action: _Optional[_Union[Override.Action, str]] = ..., value: _Optional[int] = ..., owner: _Optional[str] = ..., reason: _Optional[str] = ..., expires_unix_ns: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...

class SetOverrideRequest(_message.Message):
    __slots__ = ("override",)
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    override: Override
    def __init__(self, override: _Optional[_Union[Override, _Mapping]] = ...) -> None: ...

class SetOverrideResponse(_message.Message):
    __slots__ = ("overrides",)
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    def __init__(self, overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ...) -> None: ...

class RemoveOverrideRequest(_message.Message):
    __slots__ = ("scope", "target")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    scope: Override.Scope
    target: str
    def __init__(self, scope: _Optional[_Union[Override.Scope, str]] = ..., target: _Optional[str] = ...) -> None: ...

class RemoveOverrideResponse(_message.Message):
    __slots__ = ("removed", "overrides")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    def __init__(self, removed: _Optional[bool] = ..., overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ...) -> None: ...

class ListOverridesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListOverridesResponse(_message.Message):
    __slots__ = ("overrides",)
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    overrides: _containers.RepeatedCompositeFieldContainer[Override]
    def __init__(self, overrides: _Optional[_Iterable[_Union[Override, _Mapping]]] = ...) -> None: ...
