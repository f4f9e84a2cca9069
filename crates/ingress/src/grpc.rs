//! `whimbrel.v1.Messages`: the API over gRPC. Each call uses the functions of the HTTP endpoints; nothing is decided here.
//!
//! `grpc_guard` handles keys and load. A problem becomes a status: its code is in the metadata `whimbrel-code`, the index of an invalid
//! entry in `whimbrel-index`, the retry delay in seconds in `retry-after`, and members about a hold under the names in `HOLD_MEMBERS`.

use std::sync::Arc;

use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::{StoredRecord, Timestamp};

use crate::accept::draft::{ContentType, DeliveryTime, Draft, OwnHeaders, PublisherId, check_key, check_payload_size};
use crate::accept::{AcceptError, AcceptedMessage, AcceptedState, accept_many, accept_one};
use crate::api_state::ApiState;
use crate::attributes::check_user_topic;
use crate::endpoints::batch::{check_batch, load_of_answer};
use crate::endpoints::hold_calls::{self, DueChange, hold_id};
use crate::endpoints::read::{
    ReadQuery, ReadStart, check_read_limit, check_wait, read_on, start_of_time, start_of_word,
};
use crate::grpc_guard::GrpcCall;
use crate::keys::Scope;
use crate::load::LoadGuard;
use crate::message_json::{HoldTimes, id_of, is_own_header};
use crate::problem::{ApiProblem, Code};
use crate::settings::ReceiveSettings;
use protocol::messages_server::{Messages, MessagesServer};
use protocol::{
    BatchAnswer, ExtendRequest, ExtendResponse, FireRequest, FireResponse, Header, HoldRequest, HoldResponse, Message,
    NewMessage, PublishBatchRequest, PublishBatchResponse, PublishRequest, PublishResponse, ReadRequest, ReadResponse,
    WithdrawRequest, WithdrawResponse, batch_answer, extend_request, read_request,
};
use whimbrel_catalogue::topics::Topic;

/// The maximum bytes of protocol framing in a batch, beside the payloads.
const FRAMING_BYTES_MAX: usize = 4 << 20;

/// The generated types and the client of the protocol.
pub use whimbrel_api::protocol;

pub(super) const PATH: &str = "/whimbrel.v1.Messages/{*method}";

pub(super) fn service(api: &Arc<ApiState>) -> MessagesServer<MessagesService> {
    let largest = largest_message(&api.settings);
    MessagesServer::new(MessagesService { api: Arc::clone(api) }).max_decoding_message_size(largest)
}

pub(super) fn largest_message(settings: &ReceiveSettings) -> usize {
    settings.batch_bytes_max.max(settings.payload_bytes_max).saturating_add(FRAMING_BYTES_MAX)
}

pub(super) struct MessagesService {
    api: Arc<ApiState>,
}

#[tonic::async_trait]
impl Messages for MessagesService {
    async fn publish(&self, request: Request<PublishRequest>) -> Result<Response<PublishResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        Ok(Response::new(self.do_publish(call, request).await?))
    }

    async fn publish_batch(
        &self,
        request: Request<PublishBatchRequest>,
    ) -> Result<Response<PublishBatchResponse>, Status> {
        let (call, PublishBatchRequest { topic, messages }) = GrpcCall::split(request);
        let caller = &call.caller;
        check_user_topic(&topic)?;
        caller.require_topic(Scope::Publish, &topic)?;
        let settings = &self.api.settings;
        check_batch(settings, messages.iter().map(|message| message.payload.len()))?;
        let load = call.take_load(&self.api.in_flight);
        let now = self.api.ports.clock.now();
        let drafts = messages.into_iter().enumerate();
        let drafts: Vec<Draft> = drafts
            .map(|(index, message)| {
                draft_of(message, None, settings, now).map_err(|problem| problem.with("index", index))
            })
            .collect::<Result<_, _>>()?;
        if drafts.is_empty() {
            return Ok(with_load(PublishBatchResponse::default(), load));
        }
        self.api.metrics.batch_messages.record(drafts.len() as f64);
        let answer_load = load_of_answer(&self.api, drafts.len(), &topic)?;
        let outcomes =
            accept_many(&self.api, &topic, caller.owner(), drafts, load).await.map_err(AcceptError::into_problem)?;
        let partly_appended = outcomes.iter().any(Result::is_err);
        let answers = outcomes.into_iter().map(|outcome| match outcome {
            Ok(accepted) => batch_answer::Outcome::Published(published(&accepted, &topic)),
            Err(problem) => batch_answer::Outcome::Problem((&problem).into()),
        });
        let messages = answers.map(|outcome| BatchAnswer { outcome: Some(outcome) }).collect();
        Ok(with_load(PublishBatchResponse { messages, partly_appended }, answer_load))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        call.caller.require_topic(Scope::Consume, &request.topic)?;
        let start = match &request.start {
            None => ReadStart::Earliest,
            Some(read_request::Start::Offset(offset)) => ReadStart::Offset(*offset),
            Some(read_request::Start::Position(word)) => start_of_word(word)?,
            Some(read_request::Start::Since(time)) => start_of_time(time)?,
        };
        let limit = check_read_limit(request.limit.map(|limit| limit as usize))?;
        let wait = check_wait(request.wait.as_deref())?;
        let topic = self.api.registry.find(&request.topic).await.map_err(ApiProblem::from)?;
        let batch = read_on(&self.api, &topic, ReadQuery { partition: request.partition, start, limit, wait }).await?;
        let messages = batch.records.iter().map(|stored| message_of(&topic, request.partition, stored)).collect();
        let answer = ReadResponse { messages, next_offset: batch.next };
        let mut load = self.api.answers.begin();
        load.grow(answer.encoded_len())?;
        Ok(with_load(answer, load))
    }

    /// A hold is a publish with a time. A request without one is invalid.
    async fn hold(&self, request: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        let (call, HoldRequest { topic, message, idempotency_key }) = GrpcCall::split(request);
        let is_later = |message: &NewMessage| message.delay.is_some() || message.deliver_at.is_some();
        if !message.as_ref().is_some_and(is_later) {
            let detail = "the hold has no time: set `delay` or `deliver_at`";
            return Err(ApiProblem::new(Code::BadParameter, detail).into());
        }
        let held = self.do_publish(call, PublishRequest { topic, message, idempotency_key }).await?;
        // If the first publish under the key was not a hold, a repeat has no due time to return.
        let due = held.due.ok_or_else(|| {
            let detail = format!("`{}` was published under this key without a delay, and is in its topic", held.id);
            ApiProblem::new(Code::AlreadyFired, detail)
        })?;
        Ok(Response::new(HoldResponse { id: held.id, topic: held.topic, due }))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        let id = hold_id(&request.id)?;
        let (by, until) = match &request.to {
            None => (None, None),
            Some(extend_request::To::By(by)) => (Some(by.as_str()), None),
            Some(extend_request::To::Until(until)) => (None, Some(until.as_str())),
        };
        let (key, now) = (request.idempotency_key.as_deref(), self.api.ports.clock.now());
        let extension = DueChange::checked(by, until, request.if_version, key, now)?;
        let (due, version) = hold_calls::extend(&self.api, &call.caller, &id, extension).await?;
        Ok(Response::new(ExtendResponse { due: due.to_string(), version }))
    }

    async fn withdraw(&self, request: Request<WithdrawRequest>) -> Result<Response<WithdrawResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        hold_calls::withdraw(&self.api, &call.caller, &hold_id(&request.id)?).await?;
        Ok(Response::new(WithdrawResponse {}))
    }

    async fn fire(&self, request: Request<FireRequest>) -> Result<Response<FireResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        let place = hold_calls::fire(&self.api, &call.caller, &hold_id(&request.id)?).await?;
        let (fired_at, partition, offset) = (place.at.to_string(), place.partition, place.offset);
        Ok(Response::new(FireResponse { fired_at, partition, offset }))
    }
}

impl MessagesService {
    async fn do_publish(&self, call: GrpcCall, request: PublishRequest) -> Result<PublishResponse, ApiProblem> {
        let PublishRequest { topic, message, idempotency_key } = request;
        let caller = &call.caller;
        check_user_topic(&topic)?;
        caller.require_topic(Scope::Publish, &topic)?;
        let message = message.ok_or_else(|| ApiProblem::new(Code::BadParameter, "`message` is missing"))?;
        let draft = draft_of(message, idempotency_key.as_deref(), &self.api.settings, self.api.ports.clock.now())?;
        let load = call.take_load(&self.api.in_flight);
        let accepted = accept_one(&self.api, &topic, caller.owner(), draft, load).await?;
        Ok(published(&accepted, &topic))
    }
}

/// An answer with its load. The guard releases the load when the client has received the answer.
pub(super) fn with_load<T>(answer: T, load: LoadGuard) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(Arc::new(load));
    response
}

fn draft_of(
    message: NewMessage,
    idempotency_key: Option<&str>,
    settings: &ReceiveSettings,
    now: Timestamp,
) -> Result<Draft, ApiProblem> {
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
    let own_id = PublisherId::checked(message.id.as_deref(), idempotency_key)?;
    let later = DeliveryTime::checked(message.delay.as_deref(), message.deliver_at.as_deref(), now)?;
    let key = message.key.map(|key| key.into_bytes().into());
    Ok(Draft { key, payload: message.payload, content_type, headers: own.take(), own_id, later, push: None })
}

fn published(accepted: &AcceptedMessage, topic: &str) -> PublishResponse {
    let (id, topic) = (accepted.id.to_text(), topic.to_owned());
    match accepted.state {
        AcceptedState::InTopic { partition, offset } => PublishResponse { id, topic, partition, offset, due: None },
        AcceptedState::Held { due } => {
            PublishResponse { id, topic, partition: 0, offset: 0, due: Some(due.to_string()) }
        }
    }
}

fn message_of(topic: &Topic, partition: u32, stored: &StoredRecord) -> Message {
    let record = &stored.record;
    let held = HoldTimes::of(record);
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

/// Members of problems about holds, and their metadata names.
const HOLD_MEMBERS: &[(&str, &str)] = &[
    ("fired_at", "whimbrel-fired-at"),
    ("withdrawn_at", "whimbrel-withdrawn-at"),
    ("version", "whimbrel-version"),
    ("due", "whimbrel-due"),
];

impl From<&ApiProblem> for protocol::Problem {
    fn from(problem: &ApiProblem) -> Self {
        Self { code: problem.code().word().to_owned(), detail: problem.detail().to_owned() }
    }
}

impl From<ApiProblem> for Status {
    fn from(problem: ApiProblem) -> Self {
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
        Code::UnknownPath | Code::MethodNotAllowed | Code::NotImplemented | Code::UnsupportedTransferCoding => {
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
        | Code::PresenceStale
        | Code::NotReady => tonic::Code::Unavailable,
        // The deadline that passed is the one of the log, not of the caller, but the meaning is the same: the outcome is open.
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
