//! Protobuf conversions of calls and their outcomes. Input from other nodes is validated.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::ports::{Call, CallFailure, CallOutcome, CallReport, CallTarget, RetryAdvice};
use whimbrel_model::{Headers, Record, Timestamp};

use super::strategy::WorkerLoad;
use whimbrel_cluster::wire::protocol::call_response::Outcome;
use whimbrel_cluster::wire::protocol::not_taken::Again as AgainWord;
use whimbrel_cluster::wire::protocol::{Answered, CallFailed, CallRequest, CallResponse, LoadResponse, NotTaken};

/// A message that no Whimbrel node sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the message of another node is invalid: {0}")]
pub(super) struct MalformedCall(&'static str);

const FAILURES: [CallFailure; 7] = [
    CallFailure::Connect,
    CallFailure::Timeout,
    CallFailure::Forbidden,
    CallFailure::Tls,
    CallFailure::Broken,
    CallFailure::BadTarget,
    CallFailure::NoWorker,
];

/// The encoded target, which many calls share.
pub(crate) fn target_bytes(target: &CallTarget) -> Bytes {
    serde_json::to_vec(target).expect("a target is JSON").into()
}

pub(super) fn to_request(call: &Call, target: Bytes) -> CallRequest {
    let rule = call.rule.as_ref().map(|rule| serde_json::to_vec(&**rule).expect("a rule is JSON").into());
    CallRequest {
        target,
        topic: call.topic.to_string(),
        partition: call.partition,
        offset: call.offset,
        attempt: call.attempt,
        id: call.id.to_string(),
        published_at_ms: call.published_at.as_millis(),
        key: call.record.key.clone(),
        value: call.record.value.clone(),
        headers: call.record.headers.encoded().clone(),
        timestamp_ms: call.record.timestamp.as_millis(),
        rule,
    }
}

/// Decodes a call. `target` returns the target of the encoded bytes.
pub(super) fn from_request(
    request: CallRequest,
    target: impl FnOnce(&Bytes) -> Option<Arc<CallTarget>>,
) -> Result<Call, MalformedCall> {
    let rule = request.rule.map(|rule| serde_json::from_slice(&rule).map(Arc::new));
    let record = Record {
        key: request.key,
        value: request.value,
        headers: Headers::from_encoded(request.headers).map_err(|_| MalformedCall("headers"))?,
        timestamp: Timestamp::from_millis(request.timestamp_ms),
    };
    Ok(Call {
        target: target(&request.target).ok_or(MalformedCall("a target"))?,
        topic: request.topic.into(),
        partition: request.partition,
        offset: request.offset,
        attempt: request.attempt,
        id: request.id.into(),
        published_at: Timestamp::from_millis(request.published_at_ms),
        record,
        rule: rule.transpose().map_err(|_| MalformedCall("a rule"))?,
    })
}

pub(super) fn to_response(called: CallReport) -> CallResponse {
    let outcome = match called.outcome {
        CallOutcome::Answered { status, retry_after, answer } => {
            Outcome::Answered(Answered { status: status.into(), retry_after_ms: retry_after.map(millis), answer })
        }
        CallOutcome::Failed { why, detail } => Outcome::Failed(CallFailed { why: why.word().to_owned(), detail }),
        CallOutcome::NotTaken { reason, again } => {
            let (again, retry_after_ms) = match again {
                RetryAdvice::Never => (AgainWord::Never, None),
                RetryAdvice::Later(wait) => (AgainWord::Later, wait.map(millis)),
                RetryAdvice::LaterForAll => (AgainWord::LaterForAll, None),
            };
            Outcome::NotTaken(NotTaken { reason, again: again.into(), retry_after_ms })
        }
    };
    let took_us = u64::try_from(called.took.as_micros()).unwrap_or(u64::MAX);
    CallResponse { took_us, outcome: Some(outcome) }
}

pub(super) fn from_response(response: CallResponse) -> Result<CallReport, MalformedCall> {
    let outcome = match response.outcome.ok_or(MalformedCall("an outcome"))? {
        Outcome::Answered(Answered { status, retry_after_ms, answer }) => CallOutcome::Answered {
            status: status.try_into().map_err(|_| MalformedCall("a status"))?,
            retry_after: retry_after_ms.map(Duration::from_millis),
            answer,
        },
        Outcome::Failed(CallFailed { why, detail }) => {
            let why = FAILURES.into_iter().find(|failure| failure.word() == why).ok_or(MalformedCall("a failure"))?;
            CallOutcome::Failed { why, detail }
        }
        Outcome::NotTaken(NotTaken { reason, again, retry_after_ms }) => {
            let again = match AgainWord::try_from(again) {
                Ok(AgainWord::Never) => RetryAdvice::Never,
                Ok(AgainWord::Later) => RetryAdvice::Later(retry_after_ms.map(Duration::from_millis)),
                Ok(AgainWord::LaterForAll) => RetryAdvice::LaterForAll,
                Ok(AgainWord::Unspecified) | Err(_) => return Err(MalformedCall("whether to try again")),
            };
            CallOutcome::NotTaken { reason, again }
        }
    };
    Ok(CallReport { outcome, took: Duration::from_micros(response.took_us) })
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn to_load(load: WorkerLoad) -> LoadResponse {
    LoadResponse { in_flight: load.in_flight, cpu: load.cpu, memory: load.memory }
}

pub(super) fn from_load(load: &LoadResponse) -> WorkerLoad {
    WorkerLoad { in_flight: load.in_flight, cpu: load.cpu, memory: load.memory }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use whimbrel_model::subscription::{DeliveryRule, Endpoint, Envelope, OwnCallback, SigningSecret};

    fn target() -> CallTarget {
        let (headers, url) = (vec![("X-Env".to_owned(), "prod".to_owned())], Some("http://a/".to_owned()));
        CallTarget {
            subscription: "billing".to_owned(),
            endpoint: Endpoint { url, timeout_ms: 5, connect_timeout_ms: Some(1), headers },
            envelope: Envelope::Structured,
            secrets: vec![SigningSecret { secret: "whsec_x".to_owned(), until_ms: Some(4) }],
            workers: None,
        }
    }

    fn call(rule: Option<DeliveryRule>) -> Call {
        let mut headers = Headers::builder();
        headers.push("a", b"1").push("b", b"\xff");
        Call {
            target: Arc::new(target()),
            topic: "orders".into(),
            partition: 1,
            offset: u64::MAX,
            attempt: 2,
            id: "m".into(),
            published_at: Timestamp::from_millis(-1),
            record: Record {
                key: Some(Bytes::new()),
                value: Bytes::from_static(b"\0\xff"),
                headers: headers.take(),
                timestamp: Timestamp::from_millis(7),
            },
            rule: rule.map(Arc::new),
        }
    }

    fn carried(call: &Call) -> Result<Call, MalformedCall> {
        let bytes = to_request(call, target_bytes(&call.target)).encode_to_vec();
        let request = CallRequest::decode(&bytes[..]).unwrap();
        from_request(request, |target| serde_json::from_slice(target).ok().map(Arc::new))
    }

    #[test]
    fn a_call_is_decoded_as_it_was_encoded() {
        let callback = OwnCallback { method: "GET".to_owned(), url: "http://b/".to_owned() };
        let rule = DeliveryRule { callback: Some(callback), timeout_ms: Some(3), retry: None };
        for sent in [call(None), call(Some(rule))] {
            let came = carried(&sent).unwrap();
            assert_eq!(format!("{came:?}"), format!("{sent:?}"));
            assert_eq!(came.target.secrets, sent.target.secrets, "`Debug` does not show them");
        }
    }

    #[test]
    fn every_outcome_is_decoded_as_it_was_encoded() {
        let answered = |retry_after| CallOutcome::Answered { status: 599, retry_after, answer: "no".into() };
        let failed = FAILURES.map(|why| CallOutcome::Failed { why, detail: "because".to_owned() });
        let waits = [
            RetryAdvice::Never,
            RetryAdvice::Later(None),
            RetryAdvice::Later(Some(Duration::from_secs(3))),
            RetryAdvice::LaterForAll,
        ];
        let not_taken = waits.map(|again| CallOutcome::NotTaken { reason: "because".to_owned(), again });
        let answered = [answered(None), answered(Some(Duration::from_secs(3)))];
        for outcome in failed.into_iter().chain(answered).chain(not_taken) {
            let called = CallReport { outcome, took: Duration::from_micros(1_234) };
            let bytes = to_response(called.clone()).encode_to_vec();
            assert_eq!(from_response(CallResponse::decode(&bytes[..]).unwrap()), Ok(called));
        }
    }

    #[test]
    fn invalid_calls_and_outcomes_are_rejected() {
        let good = to_request(&call(None), target_bytes(&target()));
        let known = |_: &Bytes| Some(Arc::new(target()));
        assert!(from_request(CallRequest { headers: Bytes::from_static(b"?"), ..good.clone() }, known).is_err());
        assert!(from_request(CallRequest { rule: Some(Bytes::from_static(b"{")), ..good.clone() }, known).is_err());
        assert!(from_request(good, |_| None).is_err());
        assert!(from_response(CallResponse { took_us: 0, outcome: None }).is_err());
        let failed = CallFailed { why: "whim".to_owned(), detail: String::new() };
        assert!(from_response(CallResponse { took_us: 0, outcome: Some(Outcome::Failed(failed)) }).is_err());
        for again in [0, 9] {
            let not_taken = NotTaken { reason: String::new(), again, retry_after_ms: None };
            assert!(from_response(CallResponse { took_us: 0, outcome: Some(Outcome::NotTaken(not_taken)) }).is_err());
        }
    }
}
