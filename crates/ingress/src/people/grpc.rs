//! `whimbrel.v1.People`: the API for people over gRPC. Each call uses the functions of the HTTP endpoints; nothing is decided here.

use std::sync::Arc;

use prost::Message as _;
use serde_json::value::RawValue;
use tonic::{Request, Response, Status};
use whimbrel_model::people::{Platform, Uid};
use whimbrel_model::ports::{InboxMessage, SeatView, UserSessions};
use whimbrel_model::push::PushTask;

use super::push_accept::{StoredPush, accept_pushes};
use super::push_entry::{PushReader, Pushes, RawNotify, RawOrigin, RawPush, UidSource};
use super::{inbox, kick, presence, push_topic, tasks};
use crate::accept::AcceptError;
use crate::accept::draft::{ContentType, check_payload_size};
use crate::accept::entry::{DurationText, Text};
use crate::api_state::ApiState;
use crate::endpoints::batch::{check_batch, load_of_answer};
use crate::grpc::{largest_message, protocol, with_load};
use crate::grpc_guard::GrpcCall;
use crate::keys::Scope;
use crate::load::LoadGuard;
use crate::problem::{ApiProblem, Code};
use protocol::people_server::{People, PeopleServer};
use protocol::{
    InboxRequest, InboxResponse, InboxSeat, KickRequest, KickResponse, NewPush, PresenceRequest, PresenceResponse,
    PushBatchRequest, PushBatchResponse, PushOutcome, PushRequest, PushResponse, UserPresence, UserSession,
    push_outcome,
};

pub(crate) const PATH: &str = "/whimbrel.v1.People/{*method}";

pub(crate) fn service(api: &Arc<ApiState>) -> PeopleServer<PeopleService> {
    PeopleServer::new(PeopleService { api: Arc::clone(api) }).max_decoding_message_size(largest_message(&api.settings))
}

pub(crate) struct PeopleService {
    api: Arc<ApiState>,
}

#[tonic::async_trait]
impl People for PeopleService {
    async fn push(&self, request: Request<PushRequest>) -> Result<Response<PushResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        let mut outcomes = self.do_push(&call, request.push.as_slice(), Code::BadParameter).await?.0;
        let pushed = outcomes.pop().unwrap_or_else(|| Err(ApiProblem::new(Code::BadParameter, "`push` is missing")))?;
        Ok(Response::new(response_of(pushed)))
    }

    async fn push_batch(&self, request: Request<PushBatchRequest>) -> Result<Response<PushBatchResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        let (outcomes, load) = self.do_push(&call, &request.pushes, Code::BadEntry).await?;
        let partly_appended = outcomes.iter().any(Result::is_err);
        let answers = outcomes.into_iter().map(|outcome| match outcome {
            Ok(pushed) => push_outcome::Outcome::Pushed(response_of(pushed)),
            Err(problem) => push_outcome::Outcome::Problem((&problem).into()),
        });
        let pushes = answers.map(|outcome| PushOutcome { outcome: Some(outcome) }).collect();
        Ok(with_load(PushBatchResponse { pushes, partly_appended }, load))
    }

    async fn kick(&self, request: Request<KickRequest>) -> Result<Response<KickResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        call.caller.require(Scope::Push)?;
        let uid = uid_of(&request.uid)?;
        let kick = kick::kick_of(&uid, request.platform.as_deref(), request.session.as_deref(), &request.reason)?;
        let id = tasks::append_task(&self.api, &uid, &PushTask::Kick(kick)).await?;
        Ok(Response::new(KickResponse { id }))
    }

    async fn presence(&self, request: Request<PresenceRequest>) -> Result<Response<PresenceResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        call.caller.require(Scope::Push)?;
        let uids = presence::check_uids(&request.uids)?;
        let answer = presence::ask_presence(&self.api, uids).await?;
        let users = request.uids.into_iter().zip(answer.users).map(|(uid, found)| presence_of(uid, found)).collect();
        Ok(Response::new(PresenceResponse { users, fresh_as_of: answer.fresh_as_of.to_string() }))
    }

    async fn inbox(&self, request: Request<InboxRequest>) -> Result<Response<InboxResponse>, Status> {
        let (call, request) = GrpcCall::split(request);
        call.caller.require(Scope::Push)?;
        let uid = uid_of(&request.uid)?;
        let platform = request.platform.as_deref().map(Platform::new).transpose().map_err(ApiProblem::from)?;
        let limit = inbox::check_limit(request.limit.map(|limit| limit as usize))?;
        let view = inbox::read_inbox(&self.api, uid, platform, request.after, limit).await?;
        let answer = InboxResponse {
            epoch: view.epoch.to_string(),
            stored: view.stored,
            next_after: view.next_after,
            messages: view.messages.iter().map(message_of).collect(),
            seats: view.seats.into_iter().map(seat_of).collect(),
        };
        let mut load = self.api.answers.begin();
        load.grow(answer.encoded_len())?;
        Ok(with_load(answer, load))
    }
}

impl PeopleService {
    async fn do_push(
        &self,
        call: &GrpcCall,
        pushes: &[NewPush],
        wrong: Code,
    ) -> Result<(Vec<Result<StoredPush, ApiProblem>>, LoadGuard), ApiProblem> {
        let api = &self.api;
        call.caller.require(Scope::Push)?;
        let bytes = check_batch(&api.settings, pushes.iter().map(|push| push.payload.len()))?;
        let load = call.take_load(&api.in_flight);
        let topic = push_topic(api)?;
        let mut read = Pushes::default();
        let mut reader = PushReader::new(api, &topic, wrong, bytes);
        for (index, push) in pushes.iter().enumerate() {
            read_push(&mut reader, api, push, wrong, &mut read).map_err(|problem| problem.with("index", index))?;
        }
        let answer_load = load_of_answer(api, pushes.len(), "")?;
        if pushes.is_empty() {
            return Ok((Vec::new(), answer_load));
        }
        let outcomes = accept_pushes(api, call.caller.owner(), read, load).await.map_err(AcceptError::into_problem)?;
        Ok((outcomes, answer_load))
    }
}

/// Validates a push of the protocol with the rules for JSON.
fn read_push(
    reader: &mut PushReader<'_>,
    api: &ApiState,
    push: &NewPush,
    wrong: Code,
    into: &mut Pushes,
) -> Result<(), ApiProblem> {
    check_payload_size(push.payload.len(), &api.settings)?;
    let content_type = match &push.content_type {
        Some(text) => ContentType::checked(text.as_bytes(), &api.settings)?,
        None => ContentType::Absent,
    };
    let notify = push.notify.as_ref().map(|notify| {
        let data = notify.data.as_deref().map(serde_json::from_str::<&RawValue>).transpose();
        let data = data.map_err(|error| {
            ApiProblem::new(wrong, format!("`notify.data` must be JSON: {error}")).with("field", "notify.data")
        })?;
        Ok::<_, ApiProblem>(RawNotify { title: text(&notify.title), body: text(&notify.body), data })
    });
    let raw = RawPush {
        uids: Some(push.uids.iter().map(|uid| uid.as_str().into()).collect()),
        platforms: texts(&push.platforms),
        except_platforms: texts(&push.except_platforms),
        store: push.store,
        ttl: duration(&push.ttl),
        collapse_key: text(&push.collapse_key),
        notify: notify.transpose()?,
        notify_after: duration(&push.notify_after),
        delay: duration(&push.delay),
        id: text(&push.id),
        origin: push.origin.as_ref().map(|from| RawOrigin { server: from.server.as_str().into(), seq: from.seq }),
        ..RawPush::default()
    };
    reader.validate(&raw, push.payload.clone(), content_type, UidSource::Many, into)
}

fn text(text: &Option<String>) -> Option<Text<'_>> {
    text.as_deref().map(Text::from)
}

/// An empty list counts as absent.
fn texts(texts: &[String]) -> Option<Vec<Text<'_>>> {
    (!texts.is_empty()).then(|| texts.iter().map(|text| text.as_str().into()).collect())
}

fn duration(text: &Option<String>) -> Option<DurationText<'_>> {
    text.as_deref().map(|text| DurationText(text.into()))
}

fn uid_of(text: &str) -> Result<Uid, ApiProblem> {
    Ok(Uid::new(text)?)
}

fn response_of(pushed: StoredPush) -> PushResponse {
    PushResponse { id: pushed.id, due: pushed.due.map(|due| due.to_string()), holds: pushed.holds }
}

fn presence_of(uid: String, found: UserSessions) -> UserPresence {
    let session = |online: whimbrel_model::people::OnlineSession| UserSession {
        session: online.session.to_string(),
        platform: online.platform.to_string(),
        device: online.device.into(),
        gateway: online.session.gateway.to_string(),
        since: online.since.to_string(),
    };
    UserPresence {
        uid,
        online: !found.sessions.is_empty(),
        sessions: found.sessions.into_iter().map(session).collect(),
        last_seen: found.last_seen.map(|at| at.to_string()),
    }
}

fn message_of(stored: &InboxMessage) -> protocol::InboxMessage {
    let message = &stored.message;
    protocol::InboxMessage {
        seq: stored.seq,
        id: message.id.to_string(),
        payload: message.payload.clone(),
        content_type: message.content_type.as_deref().map(str::to_owned),
        sent_at: message.sent_at.to_string(),
        expires_at: stored.expires_at.to_string(),
    }
}

fn seat_of(seat: SeatView) -> InboxSeat {
    InboxSeat {
        platform: seat.platform.to_string(),
        device: seat.device.into(),
        cursor: seat.cursor,
        waiting: seat.waiting,
        online: seat.online,
        seen_at: seat.seen_at.to_string(),
    }
}
