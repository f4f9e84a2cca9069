//! `whimbrel.v1.Messages`: the same door over gRPC. Every call ends in the functions that HTTP uses; nothing is decided here.
//!
//! Keys and loads are the guard's (see `grpc_guard`). A problem becomes a status: its code's word is in the metadata `whimbrel-code`, the index of a bad entry in `whimbrel-index`, the
//! seconds to wait in `retry-after`, and what a hold's problem says of the hold under the names in `HOLD_MEMBERS`.

use std::sync::Arc;

use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::{StoredRecord, Timestamp};

use super::accept::{Accepted, Refusal, Standing, accept_many, accept_one};
use super::attributes::check_user_topic;
use super::batch::{at_index, load_of_answer, too_large_bytes, too_large_count};
use super::door::Door;
use super::draft::{Brought, ContentType, Draft, Later, OwnHeaders, check_key, check_payload_size};
use super::grpc_guard::Call;
use super::hold_calls::{self, Extension, hold_id};
use super::keys::Scope;
use super::load::Load;
use super::message_json::{Held, id_of, is_own_header};
use super::problem::{Code, Problem};
use super::read::{Ask, Start, check_limit, check_wait, read_on, start_of_time, start_of_word};
use super::settings::ReceiveSettings;
use protocol::messages_server::{Messages, MessagesServer};
use protocol::{
    BatchAnswer, ExtendRequest, ExtendResponse, FireRequest, FireResponse, Header, HoldRequest, HoldResponse, Message,
    NewMessage, PublishBatchRequest, PublishBatchResponse, PublishRequest, PublishResponse, ReadRequest, ReadResponse,
    WithdrawRequest, WithdrawResponse, batch_answer, extend_request, read_request,
};
use whimbrel_catalogue::topics::Topic;

/// What the protocol's own framing of a batch may take beside the payloads.
const FRAMING_BYTES_MAX: usize = 4 << 20;

/// The generated types and the client, for whoever speaks the protocol.
pub use whimbrel_api::protocol;

/// Where the router finds the service.
pub(super) const PATH: &str = "/whimbrel.v1.Messages/{*method}";

pub(super) fn service(door: &Arc<Door>) -> MessagesServer<MessagesDoor> {
    let largest = largest_message(&door.settings);
    MessagesServer::new(MessagesDoor { door: Arc::clone(door) }).max_decoding_message_size(largest)
}

/// Bytes of a request.
pub(super) fn largest_message(settings: &ReceiveSettings) -> usize {
    settings.batch_bytes_max.max(settings.payload_bytes_max).saturating_add(FRAMING_BYTES_MAX)
}

pub(super) struct MessagesDoor {
    door: Arc<Door>,
}

#[tonic::async_trait]
impl Messages for MessagesDoor {
    async fn publish(&self, request: Request<PublishRequest>) -> Result<Response<PublishResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        Ok(Response::new(self.do_publish(Call::of(&mut extensions), request).await?))
    }

    async fn publish_batch(
        &self,
        request: Request<PublishBatchRequest>,
    ) -> Result<Response<PublishBatchResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        let (answer, load) = self.do_publish_batch(Call::of(&mut extensions), request).await?;
        Ok(held(answer, load))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        let (answer, load) = self.do_read(Call::of(&mut extensions), request).await?;
        Ok(held(answer, load))
    }

    async fn hold(&self, request: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        Ok(Response::new(self.do_hold(Call::of(&mut extensions), request).await?))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        Ok(Response::new(self.do_extend(Call::of(&mut extensions), request).await?))
    }

    async fn withdraw(&self, request: Request<WithdrawRequest>) -> Result<Response<WithdrawResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        let call = Call::of(&mut extensions);
        hold_calls::withdraw(&self.door, &call.caller, &hold_id(&request.id)?).await?;
        Ok(Response::new(WithdrawResponse {}))
    }

    async fn fire(&self, request: Request<FireRequest>) -> Result<Response<FireResponse>, Status> {
        let (_, mut extensions, request) = request.into_parts();
        let call = Call::of(&mut extensions);
        let place = hold_calls::fire(&self.door, &call.caller, &hold_id(&request.id)?).await?;
        let (fired_at, partition, offset) = (place.at.to_string(), place.partition, place.offset);
        Ok(Response::new(FireResponse { fired_at, partition, offset }))
    }
}

impl MessagesDoor {
    async fn do_publish(&self, call: Call, request: PublishRequest) -> Result<PublishResponse, Problem> {
        let PublishRequest { topic, message, idempotency_key } = request;
        let caller = &call.caller;
        check_user_topic(&topic)?;
        caller.require_topic(Scope::Publish, &topic)?;
        let message = message.ok_or_else(|| Problem::new(Code::BadParameter, "`message` is missing"))?;
        let draft = draft_of(message, idempotency_key.as_deref(), &self.door.settings, self.door.ports.clock.now())?;
        let load = call.take_load(&self.door.in_flight);
        let accepted = accept_one(&self.door, &topic, caller.owner(), draft, load).await?;
        Ok(published(&accepted, &topic))
    }

    /// Holding is publishing with a time; without one the request is a mistake.
    async fn do_hold(&self, call: Call, request: HoldRequest) -> Result<HoldResponse, Problem> {
        let HoldRequest { topic, message, idempotency_key } = request;
        let is_later = |message: &NewMessage| message.delay.is_some() || message.deliver_at.is_some();
        if !message.as_ref().is_some_and(is_later) {
            return Err(Problem::new(Code::BadParameter, "a hold needs `delay` or `deliver_at`"));
        }
        let held = self.do_publish(call, PublishRequest { topic, message, idempotency_key }).await?;
        // A repeat under a key whose first publish was not held has no time to wait for.
        let due = held.due.ok_or_else(|| {
            let detail = format!("`{}` was published under this key before, and is in its topic", held.id);
            Problem::new(Code::AlreadyFired, detail)
        })?;
        Ok(HoldResponse { id: held.id, topic: held.topic, due })
    }

    async fn do_extend(&self, call: Call, request: ExtendRequest) -> Result<ExtendResponse, Problem> {
        let id = hold_id(&request.id)?;
        let (by, until) = match &request.to {
            None => (None, None),
            Some(extend_request::To::By(by)) => (Some(by.as_str()), None),
            Some(extend_request::To::Until(until)) => (None, Some(until.as_str())),
        };
        let (key, now) = (request.idempotency_key.as_deref(), self.door.ports.clock.now());
        let extension = Extension::checked(by, until, request.if_version, key, now)?;
        let (due, version) = hold_calls::extend(&self.door, &call.caller, &id, extension).await?;
        Ok(ExtendResponse { due: due.to_string(), version })
    }

    async fn do_publish_batch(
        &self,
        call: Call,
        request: PublishBatchRequest,
    ) -> Result<(PublishBatchResponse, Load), Problem> {
        let PublishBatchRequest { topic, messages } = request;
        let caller = &call.caller;
        check_user_topic(&topic)?;
        caller.require_topic(Scope::Publish, &topic)?;
        let settings = &self.door.settings;
        if messages.len() > settings.batch_messages_max {
            return Err(too_large_count(settings.batch_messages_max));
        }
        let bytes: usize = messages.iter().map(|message| message.payload.len()).sum();
        if bytes > settings.batch_bytes_max {
            return Err(too_large_bytes(settings.batch_bytes_max));
        }
        let load = call.take_load(&self.door.in_flight);
        let now = self.door.ports.clock.now();
        let drafts = messages.into_iter().enumerate();
        let drafts: Vec<Draft> = drafts
            .map(|(index, message)| draft_of(message, None, settings, now).map_err(|problem| at_index(problem, index)))
            .collect::<Result<_, _>>()?;
        if drafts.is_empty() {
            return Ok((PublishBatchResponse::default(), load));
        }
        self.door.figures.batch_messages.record(drafts.len() as f64);
        let answer_load = load_of_answer(&self.door, drafts.len(), &topic)?;
        let outcomes =
            accept_many(&self.door, &topic, caller.owner(), drafts, load).await.map_err(Refusal::into_problem)?;
        let partly_appended = outcomes.iter().any(Result::is_err);
        let answers = outcomes.into_iter().map(|outcome| match outcome {
            Ok(accepted) => batch_answer::Outcome::Published(published(&accepted, &topic)),
            Err(problem) => {
                let (code, detail) = (problem.code().word().to_owned(), problem.detail().to_owned());
                batch_answer::Outcome::Problem(protocol::Problem { code, detail })
            }
        });
        let messages = answers.map(|outcome| BatchAnswer { outcome: Some(outcome) }).collect();
        Ok((PublishBatchResponse { messages, partly_appended }, answer_load))
    }

    async fn do_read(&self, call: Call, request: ReadRequest) -> Result<(ReadResponse, Load), Problem> {
        let caller = &call.caller;
        caller.require_topic(Scope::Consume, &request.topic)?;
        let start = match &request.start {
            None => Start::Earliest,
            Some(read_request::Start::Offset(offset)) => Start::Offset(*offset),
            Some(read_request::Start::Position(word)) => start_of_word(word)?,
            Some(read_request::Start::Since(time)) => start_of_time(time)?,
        };
        let limit = check_limit(request.limit.map(|limit| limit as usize))?;
        let wait = check_wait(request.wait.as_deref())?;
        let topic = self.door.registry.find(&request.topic).await?;
        let batch = read_on(&self.door, &topic, Ask { partition: request.partition, start, limit, wait }).await?;
        let messages = batch.records.iter().map(|stored| message_of(&topic, request.partition, stored)).collect();
        let answer = ReadResponse { messages, next_offset: batch.next };
        let mut load = self.door.answers.begin();
        load.grow(answer.encoded_len())?;
        Ok((answer, load))
    }
}

/// An answer with its load, which the guard holds until the client has taken the answer.
pub(super) fn held<T>(answer: T, load: Load) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(Arc::new(load));
    response
}

fn draft_of(
    message: NewMessage,
    idempotency_key: Option<&str>,
    settings: &ReceiveSettings,
    now: Timestamp,
) -> Result<Draft, Problem> {
    check_payload_size(message.payload.len(), settings)?;
    if let Some(key) = &message.key {
        check_key(key.as_bytes())?;
    }
    let content_type = match &message.content_type {
        Some(text) => ContentType::checked(text.as_bytes(), settings)?,
        None => ContentType::Absent,
    };
    let mut own = OwnHeaders::new(settings);
    for Header { name, value } in &message.headers {
        own.push(name, value)?;
    }
    let brought = Brought::checked(message.id.as_deref(), idempotency_key)?;
    let later = Later::checked(message.delay.as_deref(), message.deliver_at.as_deref(), now)?;
    let key = message.key.map(|key| key.into_bytes().into());
    Ok(Draft { key, payload: message.payload, content_type, headers: own.take(), brought, later, push: None })
}

fn published(accepted: &Accepted, topic: &str) -> PublishResponse {
    let (id, topic) = (accepted.id.to_text(), topic.to_owned());
    match accepted.standing {
        Standing::InTopic { partition, offset } => PublishResponse { id, topic, partition, offset, due: None },
        Standing::Held { due } => PublishResponse { id, topic, partition: 0, offset: 0, due: Some(due.to_string()) },
    }
}

fn message_of(topic: &Topic, partition: u32, stored: &StoredRecord) -> Message {
    let record = &stored.record;
    let held = Held::of(record);
    let own = record.headers.iter().filter(|(name, _)| is_own_header(name));
    let header = |(name, value): (&str, &[u8])| Header { name: name.to_owned(), value: value.to_vec().into() };
    Message {
        id: id_of(topic, partition, stored),
        topic: topic.name.to_string(),
        partition,
        offset: stored.offset,
        key: record.key.clone(),
        headers: own.map(header).collect(),
        content_type: record.headers.get_str(HEADER_CONTENT_TYPE).map(str::to_owned),
        published_at: held.as_ref().map_or(record.timestamp, |held| held.published_at).to_string(),
        payload: record.value.clone(),
        due: held.as_ref().map(|held| held.due.to_string()),
        fired_at: held.as_ref().map(|held| held.fired_at.to_string()),
    }
}

/// Members of a problem about a hold, and the metadata that has them.
const HOLD_MEMBERS: &[(&str, &str)] = &[
    ("fired_at", "whimbrel-fired-at"),
    ("withdrawn_at", "whimbrel-withdrawn-at"),
    ("version", "whimbrel-version"),
    ("due", "whimbrel-due"),
];

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        let code = problem.code();
        metrics::counter!(crate::metric_names::REFUSALS, "code" => code.word()).increment(1);
        let mut metadata = MetadataMap::new();
        metadata.insert("whimbrel-code", MetadataValue::from_static(code.word()));
        if let Some(index) = problem.member("index").and_then(serde_json::Value::as_u64) {
            metadata.insert("whimbrel-index", MetadataValue::from(index));
        }
        for (member, name) in HOLD_MEMBERS {
            let text =
                problem.member(member).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            if let Some(value) = text.and_then(|text| MetadataValue::try_from(text).ok()) {
                metadata.insert(*name, value);
            }
        }
        if let Some(seconds) = code.retry_after_s() {
            metadata.insert("retry-after", MetadataValue::from(seconds));
        }
        Self::with_metadata(grpc_code(code), problem.detail(), metadata)
    }
}

fn grpc_code(code: Code) -> tonic::Code {
    match code {
        Code::KeyMissing | Code::KeyUnknown => tonic::Code::Unauthenticated,
        Code::Forbidden | Code::OriginNotAllowed => tonic::Code::PermissionDenied,
        Code::UnknownPath | Code::MethodNotAllowed | Code::NotYet | Code::UnsupportedTransferCoding => {
            tonic::Code::Unimplemented
        }
        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownMessage
        | Code::UnknownHold
        | Code::UnknownSubscription
        | Code::UnknownDevice
        | Code::UnknownWorker => tonic::Code::NotFound,
        Code::BodyTooSlow | Code::InProgress | Code::Conflict | Code::SubscriptionDeleting => tonic::Code::Aborted,
        Code::Damaged => tonic::Code::DataLoss,
        Code::OffsetOutOfRange | Code::OffsetBeyondEnd => tonic::Code::OutOfRange,
        Code::Overloaded
        | Code::TooManyTopics
        | Code::TooManySubscriptions
        | Code::TooManyPlatforms
        | Code::TooManyDevices
        | Code::TooManyReplays => tonic::Code::ResourceExhausted,
        Code::CannotShrink
        | Code::Unsupported
        | Code::AlreadyFired
        | Code::AlreadyWithdrawn
        | Code::AlreadyDead
        | Code::HoldsPending
        | Code::TopicSubscribed
        | Code::WrongMode
        | Code::VersionDiffers => tonic::Code::FailedPrecondition,
        Code::DifferentBody | Code::IdTaken => tonic::Code::AlreadyExists,
        Code::DiskFull
        | Code::LogClosed
        | Code::Unavailable
        | Code::NoOwner
        | Code::TopicGrowing
        | Code::NoSession
        | Code::PartlyAppended
        | Code::NotFresh
        | Code::NotReady => tonic::Code::Unavailable,
        // The deadline that passed is the log's, not the caller's, but it means the same: whether it happened is open.
        Code::OutcomeUnknown => tonic::Code::DeadlineExceeded,
        Code::BadBody
        | Code::BadRequest
        | Code::PayloadTooLarge
        | Code::BatchTooLarge
        | Code::BadName
        | Code::ReservedName
        | Code::BadUid
        | Code::BadPlatform
        | Code::BadDevice
        | Code::BadId
        | Code::BadKey
        | Code::BadParameter
        | Code::BadDuration
        | Code::BadTime
        | Code::BadHeader
        | Code::ReservedHeader
        | Code::TooManyHeaders
        | Code::TooManyRequestHeaders
        | Code::HeaderTooLarge
        | Code::BadJson
        | Code::BadUrl
        | Code::ForbiddenAddress
        | Code::BadSecret
        | Code::BadEntry => tonic::Code::InvalidArgument,
    }
}
