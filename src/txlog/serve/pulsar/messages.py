"""Owns the messages of Pulsar's binary protocol: their fields and numbers, and their classes.

Each line is a message: `name number type`, then `!` if the protocol requires the field and `*` if
it repeats; `= x` is a default. Names and numbers are those in the protocol's documentation; other
numbers are our own extensions. The official runtime creates the classes when this module is loaded,
so no generated code has to match the runtime's version.

    command = BaseCommand()                     command.type = PING
    command.ParseFromString(frame)              command.ping.SetInParent()

Source: https://pulsar.apache.org/docs/next/developing-binary-protocol
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "txlog.pulsar"
# A message of the runtime: its attributes are made from the tables below.
Proto: TypeAlias = Any

ENUMS: Final = """
Schema.Type: None 0, String 1, Json 2, Protobuf 3, Avro 4, Bool 5, Int8 6, Int16 7, Int32 8,
    Int64 9, Float 10, Double 11, Date 12, Time 13, Timestamp 14, KeyValue 15, Instant 16,
    LocalDate 17, LocalTime 18, LocalDateTime 19, ProtobufNative 20, AutoConsume 21
CompressionType: NONE 0, LZ4 1, ZLIB 2, ZSTD 3, SNAPPY 4
ProducerAccessMode: Shared 0, Exclusive 1, WaitForExclusive 2, ExclusiveWithFencing 3
ServerError: UnknownError 0, MetadataError 1, PersistenceError 2, AuthenticationError 3,
    AuthorizationError 4, ConsumerBusy 5, ServiceNotReady 6, ProducerBlockedQuotaExceededError
    7, ProducerBlockedQuotaExceededException 8, ChecksumError 9, UnsupportedVersionError 10,
    TopicNotFound 11, SubscriptionNotFound 12, ConsumerNotFound 13, TooManyRequests 14,
    TopicTerminatedError 15, ProducerBusy 16, InvalidTopicName 17, IncompatibleSchema 18,
    ConsumerAssignError 19, TransactionCoordinatorNotFound 20, InvalidTxnStatus 21,
    NotAllowedError 22, TransactionConflict 23, TransactionNotFound 24, ProducerFenced 25
AuthMethod: AuthMethodNone 0, AuthMethodYcaV1 1, AuthMethodAthens 2
ProtocolVersion: v0 0, v1 1, v2 2, v3 3, v4 4, v5 5, v6 6, v7 7, v8 8, v9 9, v10 10, v11 11, v12
    12, v13 13, v14 14, v15 15, v16 16, v17 17, v18 18, v19 19, v20 20
KeySharedMode: AUTO_SPLIT 0, STICKY 1
CommandSubscribe.SubType: Exclusive 0, Shared 1, Failover 2, Key_Shared 3
CommandSubscribe.InitialPosition: Latest 0, Earliest 1
CommandPartitionedTopicMetadataResponse.LookupType: Success 0, Failed 1
CommandLookupTopicResponse.LookupType: Redirect 0, Connect 1, Failed 2
CommandAck.AckType: Individual 0, Cumulative 1
CommandAck.ValidationError: UncompressedSizeCorruption 0, DecompressionError 1, ChecksumMismatch
    2, BatchDeSerializeError 3, DecryptionError 4
CommandTopicMigrated.ResourceType: Producer 0, Consumer 1
CommandGetTopicsOfNamespace.Mode: PERSISTENT 0, NON_PERSISTENT 1, ALL 2
TxnAction: COMMIT 0, ABORT 1
BaseCommand.Type: CONNECT 2, CONNECTED 3, SUBSCRIBE 4, PRODUCER 5, SEND 6, SEND_RECEIPT 7,
    SEND_ERROR 8, MESSAGE 9, ACK 10, FLOW 11, UNSUBSCRIBE 12, SUCCESS 13, ERROR 14,
    CLOSE_PRODUCER 15, CLOSE_CONSUMER 16, PRODUCER_SUCCESS 17, PING 18, PONG 19,
    REDELIVER_UNACKNOWLEDGED_MESSAGES 20, PARTITIONED_METADATA 21, PARTITIONED_METADATA_RESPONSE
    22, LOOKUP 23, LOOKUP_RESPONSE 24, CONSUMER_STATS 25, CONSUMER_STATS_RESPONSE 26,
    REACHED_END_OF_TOPIC 27, SEEK 28, GET_LAST_MESSAGE_ID 29, GET_LAST_MESSAGE_ID_RESPONSE 30,
    ACTIVE_CONSUMER_CHANGE 31, GET_TOPICS_OF_NAMESPACE 32, GET_TOPICS_OF_NAMESPACE_RESPONSE 33,
    GET_SCHEMA 34, GET_SCHEMA_RESPONSE 35, AUTH_CHALLENGE 36, AUTH_RESPONSE 37, ACK_RESPONSE 38,
    GET_OR_CREATE_SCHEMA 39, GET_OR_CREATE_SCHEMA_RESPONSE 40, NEW_TXN 50, NEW_TXN_RESPONSE 51,
    ADD_PARTITION_TO_TXN 52, ADD_PARTITION_TO_TXN_RESPONSE 53, ADD_SUBSCRIPTION_TO_TXN 54,
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE 55, END_TXN 56, END_TXN_RESPONSE 57, END_TXN_ON_PARTITION
    58, END_TXN_ON_PARTITION_RESPONSE 59, END_TXN_ON_SUBSCRIPTION 60,
    END_TXN_ON_SUBSCRIPTION_RESPONSE 61, TC_CLIENT_CONNECT_REQUEST 62,
    TC_CLIENT_CONNECT_RESPONSE 63, WATCH_TOPIC_LIST 64, WATCH_TOPIC_LIST_SUCCESS 65,
    WATCH_TOPIC_UPDATE 66, WATCH_TOPIC_LIST_CLOSE 67, TOPIC_MIGRATED 68
"""

MESSAGES: Final = """
Schema: name 1 string!, schema_data 3 bytes!, type 4 Type!, properties 5 KeyValue*
MessageIdData: ledgerId 1 uint64!, entryId 2 uint64!, partition 3 int32 = -1, batch_index 4
    int32 = -1, ack_set 5 int64*, batch_size 6 int32, first_chunk_message_id 7 MessageIdData
KeyValue: key 1 string!, value 2 string!
KeyLongValue: key 1 string!, value 2 uint64!
IntRange: start 1 int32!, end 2 int32!
EncryptionKeys: key 1 string!, value 2 bytes!, metadata 3 KeyValue*
MessageMetadata: producer_name 1 string!, sequence_id 2 uint64!, publish_time 3 uint64!,
    properties 4 KeyValue*, replicated_from 5 string, partition_key 6 string, replicate_to 7
    string*, compression 8 CompressionType = NONE, uncompressed_size 9 uint32,
    num_messages_in_batch 11 int32 = 1, event_time 12 uint64, encryption_keys 13
    EncryptionKeys*, encryption_algo 14 string, encryption_param 15 bytes, schema_version 16
    bytes, partition_key_b64_encoded 17 bool, ordering_key 18 bytes, deliver_at_time 19 int64,
    marker_type 20 int32, txnid_least_bits 22 uint64, txnid_most_bits 23 uint64,
    highest_sequence_id 24 uint64, null_value 25 bool, uuid 26 string, num_chunks_from_msg 27
    int32, total_chunk_msg_size 28 int32, chunk_id 29 int32, null_partition_key 30 bool
SingleMessageMetadata: properties 1 KeyValue*, partition_key 2 string, payload_size 3 int32!,
    compacted_out 4 bool, event_time 5 uint64, partition_key_b64_encoded 6 bool, ordering_key 7
    bytes, sequence_id 8 uint64, null_value 9 bool, null_partition_key 10 bool
BrokerEntryMetadata: broker_timestamp 1 uint64, index 2 uint64
CommandConnect: client_version 1 string!, auth_method 2 AuthMethod, auth_method_name 5 string,
    auth_data 3 bytes, protocol_version 4 int32, proxy_to_broker_url 6 string,
    original_principal 7 string, original_auth_data 8 string, original_auth_method 9 string,
    feature_flags 10 FeatureFlags
FeatureFlags: supports_auth_refresh 1 bool, supports_broker_entry_metadata 2 bool,
    supports_partial_producer 3 bool, supports_topic_watchers 4 bool,
    supports_get_partitioned_metadata_without_auto_creation 5 bool
CommandConnected: server_version 1 string!, protocol_version 2 int32, max_message_size 3 int32,
    feature_flags 4 FeatureFlags
CommandAuthResponse: client_version 1 string, response 2 AuthData, protocol_version 3 int32
CommandAuthChallenge: server_version 1 string, challenge 2 AuthData, protocol_version 3 int32
AuthData: auth_method_name 1 string, auth_data 2 bytes
KeySharedMeta: keySharedMode 1 KeySharedMode!, hashRanges 3 IntRange*, allowOutOfOrderDelivery 4
    bool
CommandSubscribe: topic 1 string!, subscription 2 string!, subType 3 SubType!, consumer_id 4
    uint64!, request_id 5 uint64!, consumer_name 6 string, priority_level 7 int32, durable 8
    bool = true, start_message_id 9 MessageIdData, metadata 10 KeyValue*, read_compacted 11
    bool, schema 12 Schema, initialPosition 13 InitialPosition = Latest,
    replicate_subscription_state 14 bool, force_topic_creation 15 bool = true,
    start_message_rollback_duration_sec 16 uint64, keySharedMeta 17 KeySharedMeta,
    subscription_properties 18 KeyValue*, consumer_epoch 19 uint64
CommandPartitionedTopicMetadata: topic 1 string!, request_id 2 uint64!, original_principal 3
    string, original_auth_data 4 string, original_auth_method 5 string,
    metadata_auto_creation_enabled 6 bool = true
CommandPartitionedTopicMetadataResponse: partitions 1 uint32, request_id 2 uint64!, response 3
    LookupType, error 4 ServerError, message 5 string
CommandLookupTopic: topic 1 string!, request_id 2 uint64!, authoritative 3 bool,
    original_principal 4 string, original_auth_data 5 string, original_auth_method 6 string,
    advertised_listener_name 7 string, properties 8 KeyValue*
CommandLookupTopicResponse: brokerServiceUrl 1 string, brokerServiceUrlTls 2 string, response 3
    LookupType, request_id 4 uint64!, authoritative 5 bool, error 6 ServerError, message 7
    string, proxy_through_service_url 8 bool
CommandProducer: topic 1 string!, producer_id 2 uint64!, request_id 3 uint64!, producer_name 4
    string, encrypted 5 bool, metadata 6 KeyValue*, schema 7 Schema, epoch 8 uint64,
    user_provided_producer_name 9 bool = true, producer_access_mode 10 ProducerAccessMode =
    Shared, topic_epoch 11 uint64, txn_enabled 12 bool, initial_subscription_name 13 string
CommandSend: producer_id 1 uint64!, sequence_id 2 uint64!, num_messages 3 int32 = 1,
    txnid_least_bits 4 uint64, txnid_most_bits 5 uint64, highest_sequence_id 6 uint64, is_chunk
    7 bool, marker 8 bool, message_id 9 MessageIdData
CommandSendReceipt: producer_id 1 uint64!, sequence_id 2 uint64!, message_id 3 MessageIdData,
    highest_sequence_id 4 uint64
CommandSendError: producer_id 1 uint64!, sequence_id 2 uint64!, error 3 ServerError!, message 4
    string!
CommandMessage: consumer_id 1 uint64!, message_id 2 MessageIdData!, redelivery_count 3 uint32,
    ack_set 4 int64*, consumer_epoch 5 uint64
CommandAck: consumer_id 1 uint64!, ack_type 2 AckType!, message_id 3 MessageIdData*,
    validation_error 4 ValidationError, properties 5 KeyLongValue*, txnid_least_bits 6 uint64,
    txnid_most_bits 7 uint64, request_id 8 uint64
CommandAckResponse: consumer_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64,
    error 4 ServerError, message 5 string, request_id 6 uint64
CommandActiveConsumerChange: consumer_id 1 uint64!, is_active 2 bool
CommandFlow: consumer_id 1 uint64!, messagePermits 2 uint32!
CommandUnsubscribe: consumer_id 1 uint64!, request_id 2 uint64!, force 3 bool
CommandSeek: consumer_id 1 uint64!, request_id 2 uint64!, message_id 3 MessageIdData,
    message_publish_time 4 uint64
CommandReachedEndOfTopic: consumer_id 1 uint64!
CommandTopicMigrated: resource_id 1 uint64!, resource_type 2 ResourceType!, brokerServiceUrl 3
    string, brokerServiceUrlTls 4 string
CommandCloseProducer: producer_id 1 uint64!, request_id 2 uint64!, assignedBrokerServiceUrl 3
    string, assignedBrokerServiceUrlTls 4 string
CommandCloseConsumer: consumer_id 1 uint64!, request_id 2 uint64!, assignedBrokerServiceUrl 3
    string, assignedBrokerServiceUrlTls 4 string
CommandRedeliverUnacknowledgedMessages: consumer_id 1 uint64!, message_ids 2 MessageIdData*,
    consumer_epoch 3 uint64
CommandSuccess: request_id 1 uint64!, schema 2 Schema
CommandProducerSuccess: request_id 1 uint64!, producer_name 2 string!, last_sequence_id 3 int64
    = -1, schema_version 4 bytes, topic_epoch 5 uint64, producer_ready 6 bool = true
CommandError: request_id 1 uint64!, error 2 ServerError!, message 3 string!
CommandPing:
CommandPong:
CommandConsumerStats: request_id 1 uint64!, consumer_id 4 uint64!
CommandConsumerStatsResponse: request_id 1 uint64!, error_code 2 ServerError, error_message 3
    string, msgRateOut 4 double, msgThroughputOut 5 double, msgRateRedeliver 6 double,
    consumerName 7 string, availablePermits 8 uint64, unackedMessages 9 uint64,
    blockedConsumerOnUnackedMsgs 10 bool, address 11 string, connectedSince 12 string, type 13
    string, msgRateExpired 14 double, msgBacklog 15 uint64, messageAckRate 16 double
CommandGetLastMessageId: consumer_id 1 uint64!, request_id 2 uint64!
CommandGetLastMessageIdResponse: last_message_id 1 MessageIdData!, request_id 2 uint64!,
    consumer_mark_delete_position 3 MessageIdData
CommandGetTopicsOfNamespace: request_id 1 uint64!, namespace 2 string!, mode 3 Mode =
    PERSISTENT, topics_pattern 4 string, topics_hash 5 string
CommandGetTopicsOfNamespaceResponse: request_id 1 uint64!, topics 2 string*, filtered 3 bool,
    topics_hash 4 string, changed 5 bool = true
CommandWatchTopicList: request_id 1 uint64!, watcher_id 2 uint64!, namespace 3 string!,
    topics_pattern 4 string!, topics_hash 5 string
CommandWatchTopicListSuccess: request_id 1 uint64!, watcher_id 2 uint64!, topic 3 string*,
    topics_hash 4 string!
CommandWatchTopicUpdate: watcher_id 1 uint64!, new_topics 2 string*, deleted_topics 3 string*,
    topics_hash 4 string!
CommandWatchTopicListClose: request_id 1 uint64!, watcher_id 2 uint64!
CommandGetSchema: request_id 1 uint64!, topic 2 string!, schema_version 3 bytes
CommandGetSchemaResponse: request_id 1 uint64!, error_code 2 ServerError, error_message 3
    string, schema 4 Schema, schema_version 5 bytes
CommandGetOrCreateSchema: request_id 1 uint64!, topic 2 string!, schema 3 Schema!
CommandGetOrCreateSchemaResponse: request_id 1 uint64!, error_code 2 ServerError, error_message
    3 string, schema_version 4 bytes
CommandTcClientConnectRequest: request_id 1 uint64!, tc_id 2 uint64!, transaction_key 1001
    string, epoch 1002 int64 = -1
CommandTcClientConnectResponse: request_id 1 uint64!, error 2 ServerError, message 3 string,
    epoch 1001 int64
CommandNewTxn: request_id 1 uint64!, txn_ttl_seconds 2 uint64, tc_id 3 uint64
CommandNewTxnResponse: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, error 4 ServerError, message 5 string
CommandAddPartitionToTxn: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, partitions 4 string*
CommandAddPartitionToTxnResponse: request_id 1 uint64!, txnid_least_bits 2 uint64,
    txnid_most_bits 3 uint64, error 4 ServerError, message 5 string
Subscription: topic 1 string!, subscription 2 string!
CommandAddSubscriptionToTxn: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, subscription 4 Subscription*
CommandAddSubscriptionToTxnResponse: request_id 1 uint64!, txnid_least_bits 2 uint64,
    txnid_most_bits 3 uint64, error 4 ServerError, message 5 string
CommandEndTxn: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3 uint64,
    txn_action 4 TxnAction
CommandEndTxnResponse: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, error 4 ServerError, message 5 string
CommandEndTxnOnPartition: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, topic 4 string, txn_action 5 TxnAction, txnid_least_bits_of_low_watermark 6 uint64
CommandEndTxnOnPartitionResponse: request_id 1 uint64!, txnid_least_bits 2 uint64,
    txnid_most_bits 3 uint64, error 4 ServerError, message 5 string
CommandEndTxnOnSubscription: request_id 1 uint64!, txnid_least_bits 2 uint64, txnid_most_bits 3
    uint64, subscription 4 Subscription, txn_action 5 TxnAction,
    txnid_least_bits_of_low_watermark 6 uint64
CommandEndTxnOnSubscriptionResponse: request_id 1 uint64!, txnid_least_bits 2 uint64,
    txnid_most_bits 3 uint64, error 4 ServerError, message 5 string
BaseCommand: type 1 Type!, connect 2 CommandConnect, connected 3 CommandConnected, subscribe 4
    CommandSubscribe, producer 5 CommandProducer, send 6 CommandSend, send_receipt 7
    CommandSendReceipt, send_error 8 CommandSendError, message 9 CommandMessage, ack 10
    CommandAck, flow 11 CommandFlow, unsubscribe 12 CommandUnsubscribe, success 13
    CommandSuccess, error 14 CommandError, close_producer 15 CommandCloseProducer,
    close_consumer 16 CommandCloseConsumer, producer_success 17 CommandProducerSuccess, ping 18
    CommandPing, pong 19 CommandPong, redeliverUnacknowledgedMessages 20
    CommandRedeliverUnacknowledgedMessages, partitionMetadata 21
    CommandPartitionedTopicMetadata, partitionMetadataResponse 22
    CommandPartitionedTopicMetadataResponse, lookupTopic 23 CommandLookupTopic,
    lookupTopicResponse 24 CommandLookupTopicResponse, consumerStats 25 CommandConsumerStats,
    consumerStatsResponse 26 CommandConsumerStatsResponse, reachedEndOfTopic 27
    CommandReachedEndOfTopic, seek 28 CommandSeek, getLastMessageId 29 CommandGetLastMessageId,
    getLastMessageIdResponse 30 CommandGetLastMessageIdResponse, active_consumer_change 31
    CommandActiveConsumerChange, getTopicsOfNamespace 32 CommandGetTopicsOfNamespace,
    getTopicsOfNamespaceResponse 33 CommandGetTopicsOfNamespaceResponse, getSchema 34
    CommandGetSchema, getSchemaResponse 35 CommandGetSchemaResponse, authChallenge 36
    CommandAuthChallenge, authResponse 37 CommandAuthResponse, ackResponse 38
    CommandAckResponse, getOrCreateSchema 39 CommandGetOrCreateSchema, getOrCreateSchemaResponse
    40 CommandGetOrCreateSchemaResponse, newTxn 50 CommandNewTxn, newTxnResponse 51
    CommandNewTxnResponse, addPartitionToTxn 52 CommandAddPartitionToTxn,
    addPartitionToTxnResponse 53 CommandAddPartitionToTxnResponse, addSubscriptionToTxn 54
    CommandAddSubscriptionToTxn, addSubscriptionToTxnResponse 55
    CommandAddSubscriptionToTxnResponse, endTxn 56 CommandEndTxn, endTxnResponse 57
    CommandEndTxnResponse, endTxnOnPartition 58 CommandEndTxnOnPartition,
    endTxnOnPartitionResponse 59 CommandEndTxnOnPartitionResponse, endTxnOnSubscription 60
    CommandEndTxnOnSubscription, endTxnOnSubscriptionResponse 61
    CommandEndTxnOnSubscriptionResponse, tcClientConnectRequest 62
    CommandTcClientConnectRequest, tcClientConnectResponse 63 CommandTcClientConnectResponse,
    watchTopicList 64 CommandWatchTopicList, watchTopicListSuccess 65
    CommandWatchTopicListSuccess, watchTopicUpdate 66 CommandWatchTopicUpdate,
    watchTopicListClose 67 CommandWatchTopicListClose, topicMigrated 68 CommandTopicMigrated
"""

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "double": _FIELD.TYPE_DOUBLE,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
}
_LABELS: Final = {"": _FIELD.LABEL_OPTIONAL, "!": _FIELD.LABEL_REQUIRED, "*": _FIELD.LABEL_REPEATED}


def _lines(table: str) -> dict[str, list[str]]:
    """The items behind each name of a table."""
    lines: dict[str, list[str]] = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        name, _, items = line.partition(":")
        lines[name] = [item.strip() for item in items.split(",") if item.strip()]
    return lines


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The tables as the runtime wants them."""
    enums, messages = _lines(ENUMS), _lines(MESSAGES)
    file = descriptor_pb2.FileDescriptorProto(
        name="txlog/pulsar.proto", package=PACKAGE, syntax="proto2"
    )
    by_name = {name: file.message_type.add(name=name) for name in messages}
    for name, values in enums.items():
        home, _, short = name.rpartition(".")
        kind = (by_name[home] if home else file).enum_type.add(name=short)
        for value in values:
            text, number = value.split()
            kind.value.add(name=text, number=int(number))
    for name, fields in messages.items():
        for field in fields:
            _add(by_name[name], field, enums)
    return file


def _add(message: descriptor_pb2.DescriptorProto, text: str, enums: dict[str, list[str]]) -> None:
    """Give a message one field of the table."""
    field_text, _, default = text.partition(" = ")
    name, number, kind = field_text.split()
    mark = kind[-1] if kind[-1] in _LABELS else ""
    field = message.field.add(name=name, number=int(number), label=_LABELS[mark])
    kind = kind.removesuffix(mark)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif kind in enums or f"{message.name}.{kind}" in enums:
        home = f"{message.name}." if f"{message.name}.{kind}" in enums else ""
        field.type = _FIELD.TYPE_ENUM
        field.type_name = f".{PACKAGE}.{home}{kind}"
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
    if default:
        field.default_value = default.strip()


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def message_class(name: str) -> Proto:
    """The class of a message of the table."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _values(name: str) -> dict[str, int]:
    pairs = (item.split() for item in _lines(ENUMS)[name])
    return {text: int(number) for text, number in pairs}


COMMANDS: Final = _values("BaseCommand.Type")
ERRORS: Final = _values("ServerError")
# The field of BaseCommand that holds each command, by their common number. Their names differ:
# PARTITIONED_METADATA is in partitionMetadata.
FIELDS: Final = {
    int(number): name
    for name, number, *_ in (one.split() for one in _lines(MESSAGES)["BaseCommand"])
    if name != "type"
}

AuthData: Proto = message_class("AuthData")
BaseCommand: Proto = message_class("BaseCommand")
FeatureFlags: Proto = message_class("FeatureFlags")
MessageIdData: Proto = message_class("MessageIdData")
MessageMetadata: Proto = message_class("MessageMetadata")
SingleMessageMetadata: Proto = message_class("SingleMessageMetadata")
