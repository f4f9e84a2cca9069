//! Classifies the answer to a callback. Pure.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use whimbrel_model::SubscriptionSpec;
use whimbrel_model::ports::{CallFailure, CallOutcome, RetryAdvice};
use whimbrel_model::subscription::{DeliveryRule, GonePolicy};

/// The most characters of a reason that quotes the endpoint.
const REASON_CHARS_MAX: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallVerdict {
    Success {
        status: u16,
    },
    Failure(DeliveryFailure),
    /// The endpoint reports that it is permanently gone.
    Gone,
    /// No call was made, so this is not an attempt.
    NotTried {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFailure {
    pub status: Option<u16>,
    pub reason: String,
    pub answer: Bytes,
    pub retry_after: Option<Duration>,
    /// The endpoint is overloaded: fewer concurrent calls.
    pub strain: bool,
    /// The endpoint does not work. Otherwise only this message failed.
    pub endpoint: bool,
    /// The whole subscription must wait, not only this message.
    pub throttled: bool,
    /// A repeat cannot succeed: no further retries.
    pub is_final: bool,
}

/// Classifies the result of a call. `rule` is the message's own delivery rule.
pub fn classify_response(spec: &SubscriptionSpec, rule: Option<&DeliveryRule>, outcome: CallOutcome) -> CallVerdict {
    match outcome {
        CallOutcome::Answered { status, retry_after, answer } => {
            let refusal = match &spec.success {
                Some(wanted) if wanted.contains(&status) => None,
                None if (200..300).contains(&status) && uses_own_callback(spec, rule) => refusal_of(status, &answer),
                None if (200..300).contains(&status) => None,
                _ => Some(format!("answered {status}")),
            };
            let Some(reason) = refusal else { return CallVerdict::Success { status } };
            if status == 410 && spec.gone == GonePolicy::Disable {
                return CallVerdict::Gone;
            }
            CallVerdict::Failure(DeliveryFailure {
                status: Some(status),
                reason,
                answer,
                retry_after,
                strain: matches!(status, 429 | 502 | 503 | 504),
                endpoint: status >= 500 || matches!(status, 401 | 403 | 404 | 408 | 429),
                throttled: status == 429,
                is_final: false,
            })
        }
        CallOutcome::Failed { why: CallFailure::NoWorker, detail } => CallVerdict::NotTried { why: detail },
        CallOutcome::Failed { why, detail } => CallVerdict::Failure(DeliveryFailure {
            status: None,
            reason: format!("{}: {detail}", why.word()),
            answer: Bytes::new(),
            retry_after: None,
            strain: matches!(why, CallFailure::Timeout | CallFailure::Connect),
            endpoint: why != CallFailure::BadTarget,
            throttled: false,
            is_final: false,
        }),
        CallOutcome::NotTaken { reason, again } => CallVerdict::Failure(DeliveryFailure {
            status: None,
            reason,
            answer: Bytes::new(),
            retry_after: match again {
                RetryAdvice::Later(wait) => wait,
                RetryAdvice::Never | RetryAdvice::LaterForAll => None,
            },
            strain: again == RetryAdvice::LaterForAll,
            endpoint: again == RetryAdvice::LaterForAll,
            throttled: false,
            is_final: again == RetryAdvice::Never,
        }),
    }
}

/// Whether the call went to the message's own callback. A subscription with an endpoint URL ignores that.
fn uses_own_callback(spec: &SubscriptionSpec, rule: Option<&DeliveryRule>) -> bool {
    let has_endpoint = spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_some());
    !has_endpoint && rule.is_some_and(|rule| rule.callback.is_some())
}

/// Why soraka counts an answer as a failure. Success is status 200 and a JSON object with `"result": true`. As in soraka, the name is
/// case-insensitive, and text after the first JSON value is ignored.
fn refusal_of(status: u16, answer: &[u8]) -> Option<String> {
    if status != 200 {
        return Some(format!("answered {status}; a callback that a message brings must answer 200"));
    }
    let first = serde_json::Deserializer::from_slice(answer).into_iter::<Value>().next();
    let Some(Ok(Value::Object(members))) = first else {
        return Some("answered 200 without a JSON object that has `\"result\": true`".to_owned());
    };
    let member = |wanted: &str| {
        let other_case = || members.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value);
        members.get(wanted).or_else(other_case)
    };
    if member("result") == Some(&Value::Bool(true)) {
        return None;
    }
    let shown = member("result").map_or_else(|| "no `result`".to_owned(), |value| format!("`\"result\": {value}`"));
    let reported = member("em").and_then(Value::as_str).filter(|em| !em.is_empty());
    let reported = reported.map(|em| format!(": {em}")).unwrap_or_default();
    Some(format!("answered 200 with {shown}{reported}").chars().take(REASON_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::subscription::{Endpoint, Mode, OwnCallback};

    fn spec() -> SubscriptionSpec {
        SubscriptionSpec::new(vec!["orders".to_owned()], Mode::Push, None)
    }

    fn answered(status: u16) -> CallOutcome {
        CallOutcome::Answered { status, retry_after: None, answer: Bytes::new() }
    }

    #[test]
    fn any_2xx_is_success_unless_the_subscription_names_statuses() {
        assert_eq!(classify_response(&spec(), None, answered(204)), CallVerdict::Success { status: 204 });
        let narrowed = SubscriptionSpec { success: Some(vec![200]), ..spec() };
        assert!(matches!(classify_response(&narrowed, None, answered(204)), CallVerdict::Failure(_)));
        assert!(
            matches!(classify_response(&spec(), None, answered(302)), CallVerdict::Failure(_)),
            "redirects are not followed"
        );
    }

    fn with_own_callback() -> (SubscriptionSpec, DeliveryRule) {
        let endpoint = Endpoint { url: None, timeout_ms: 1, connect_timeout_ms: None, headers: Vec::new() };
        let callback = OwnCallback { method: "POST".to_owned(), url: "http://a/".to_owned() };
        let rule = DeliveryRule { callback: Some(callback), ..DeliveryRule::default() };
        (SubscriptionSpec { endpoint: Some(endpoint), ..spec() }, rule)
    }

    fn answered_with(status: u16, body: &'static str) -> CallOutcome {
        CallOutcome::Answered { status, retry_after: None, answer: Bytes::from_static(body.as_bytes()) }
    }

    #[test]
    fn a_messages_own_callback_succeeds_by_its_body_as_in_soraka() {
        let (spec, rule) = with_own_callback();
        for body in [r#"{"ec":200,"em":"success","result":true}"#, r#"{"Result":true} and more"#] {
            let verdict = classify_response(&spec, Some(&rule), answered_with(200, body));
            assert_eq!(verdict, CallVerdict::Success { status: 200 }, "{body}");
        }
        for (status, body, reason) in [
            (200, r#"{"ec":500,"em":"no stock","result":false}"#, "answered 200 with `\"result\": false`: no stock"),
            (200, r#"{"ec":200}"#, "answered 200 with no `result`"),
            (200, r#"{"result":"true"}"#, "answered 200 with `\"result\": \"true\"`"),
            (200, "", "answered 200 without a JSON object that has `\"result\": true`"),
            (200, "[true]", "answered 200 without a JSON object that has `\"result\": true`"),
            (204, r#"{"result":true}"#, "answered 204; a callback that a message brings must answer 200"),
            (500, r#"{"result":true}"#, "answered 500"),
        ] {
            let CallVerdict::Failure(failure) = classify_response(&spec, Some(&rule), answered_with(status, body))
            else {
                panic!("{status} {body} is no success");
            };
            assert_eq!((failure.status, failure.reason.as_str()), (Some(status), reason));
        }
    }

    #[test]
    fn the_body_does_not_count_for_an_endpoint_url_or_named_statuses() {
        let (mut spec, rule) = with_own_callback();
        let refused = || answered_with(200, r#"{"result":false}"#);
        let named = SubscriptionSpec { success: Some(vec![200]), ..spec.clone() };
        assert_eq!(classify_response(&named, Some(&rule), refused()), CallVerdict::Success { status: 200 });
        assert_eq!(classify_response(&spec, None, refused()), CallVerdict::Success { status: 200 });
        spec.endpoint.as_mut().unwrap().url = Some("http://b/".to_owned());
        assert_eq!(classify_response(&spec, Some(&rule), refused()), CallVerdict::Success { status: 200 });
    }

    #[test]
    fn status_410_disables_unless_configured_as_a_failure() {
        assert_eq!(classify_response(&spec(), None, answered(410)), CallVerdict::Gone);
        let ordinary = SubscriptionSpec { gone: GonePolicy::Fail, ..spec() };
        assert!(matches!(classify_response(&ordinary, None, answered(410)), CallVerdict::Failure(_)));
    }

    #[test]
    fn overload_and_failures_of_one_message_are_distinguished() {
        let failure = |outcome| match classify_response(&spec(), None, outcome) {
            CallVerdict::Failure(failure) => failure,
            other => panic!("{other:?}"),
        };
        assert!(failure(answered(503)).strain);
        assert!(!failure(answered(500)).strain && failure(answered(500)).endpoint);
        assert!(!failure(answered(422)).endpoint);
        assert!(failure(answered(429)).throttled);
        let timeout = CallOutcome::Failed { why: CallFailure::Timeout, detail: "3 s".to_owned() };
        assert!(failure(timeout).strain);
        let no_worker = CallOutcome::Failed { why: CallFailure::NoWorker, detail: "none".to_owned() };
        assert!(matches!(classify_response(&spec(), None, no_worker), CallVerdict::NotTried { .. }));
    }

    #[test]
    fn a_rejection_by_a_component_has_a_reason_and_says_whether_to_retry() {
        let failure = |again| match classify_response(
            &spec(),
            None,
            CallOutcome::NotTaken { reason: "no keys".to_owned(), again },
        ) {
            CallVerdict::Failure(failure) => failure,
            other => panic!("{other:?}"),
        };
        let wait = Some(Duration::from_secs(3));
        for again in [RetryAdvice::Never, RetryAdvice::Later(wait), RetryAdvice::LaterForAll] {
            let failure = failure(again);
            assert_eq!((failure.status, failure.reason.as_str()), (None, "no keys"));
            assert_eq!(failure.is_final, again == RetryAdvice::Never);
            assert_eq!(failure.endpoint, again == RetryAdvice::LaterForAll, "{again:?}");
            assert_eq!(failure.retry_after, wait.filter(|_| again == RetryAdvice::Later(wait)));
        }
    }
}
