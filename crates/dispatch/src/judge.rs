//! What an answer to a callback means. Pure.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use whimbrel_model::SubscriptionSpec;
use whimbrel_model::ports::{Again, CallFailure, CallOutcome};
use whimbrel_model::subscription::{DeliveryRule, Gone};

/// Characters of a reason that quotes the endpoint's own words.
const REASON_CHARS_MAX: usize = 500;

/// A judged answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Success {
        status: u16,
    },
    Failure(Failure),
    /// The endpoint says that it is gone for good.
    Gone,
    /// Nothing was called: it is no attempt.
    NotTried {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub status: Option<u16>,
    pub reason: String,
    pub answer: Bytes,
    pub retry_after: Option<Duration>,
    /// The endpoint shows strain: fewer at a time.
    pub strain: bool,
    /// The endpoint does not work, as far as this answer tells; otherwise it is this message that it does not like.
    pub endpoint: bool,
    /// Everybody is asked to wait, not only this message.
    pub throttled: bool,
    /// No repeat can mend it: whatever retries are left are left out.
    pub is_final: bool,
}

/// Judges how a call went. `rule` is the message's own.
pub fn judge(spec: &SubscriptionSpec, rule: Option<&DeliveryRule>, outcome: CallOutcome) -> Verdict {
    match outcome {
        CallOutcome::Answered { status, retry_after, answer } => {
            let refusal = match &spec.success {
                Some(wanted) if wanted.contains(&status) => None,
                None if (200..300).contains(&status) && brings_callback(spec, rule) => refusal_of(status, &answer),
                None if (200..300).contains(&status) => None,
                _ => Some(format!("answered {status}")),
            };
            let Some(reason) = refusal else { return Verdict::Success { status } };
            if status == 410 && spec.gone == Gone::Disable {
                return Verdict::Gone;
            }
            Verdict::Failure(Failure {
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
        CallOutcome::Failed { why: CallFailure::NoWorker, detail } => Verdict::NotTried { why: detail },
        CallOutcome::Failed { why, detail } => Verdict::Failure(Failure {
            status: None,
            reason: format!("{}: {detail}", why.word()),
            answer: Bytes::new(),
            retry_after: None,
            strain: matches!(why, CallFailure::Timeout | CallFailure::Connect),
            endpoint: why != CallFailure::BadTarget,
            throttled: false,
            is_final: false,
        }),
        CallOutcome::NotTaken { reason, again } => Verdict::Failure(Failure {
            status: None,
            reason,
            answer: Bytes::new(),
            retry_after: match again {
                Again::Later(wait) => wait,
                Again::Never | Again::LaterForAll => None,
            },
            strain: again == Again::LaterForAll,
            endpoint: again == Again::LaterForAll,
            throttled: false,
            is_final: again == Again::Never,
        }),
    }
}

/// Whether the message was sent to the callback that it brought. A subscription with an endpoint of its own ignores that.
fn brings_callback(spec: &SubscriptionSpec, rule: Option<&DeliveryRule>) -> bool {
    let has_endpoint = spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_some());
    !has_endpoint && rule.is_some_and(|rule| rule.callback.is_some())
}

/// Why soraka counts an answer as a failure: success is status 200 and a JSON object with `"result": true`, and nothing else.
/// As there, letters of the name may be capital, and what follows the first JSON value is ignored.
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
    fn any_2xx_is_success_unless_it_is_narrowed() {
        assert_eq!(judge(&spec(), None, answered(204)), Verdict::Success { status: 204 });
        let narrowed = SubscriptionSpec { success: Some(vec![200]), ..spec() };
        assert!(matches!(judge(&narrowed, None, answered(204)), Verdict::Failure(_)));
        assert!(matches!(judge(&spec(), None, answered(302)), Verdict::Failure(_)), "redirects are not followed");
    }

    fn brought() -> (SubscriptionSpec, DeliveryRule) {
        let endpoint = Endpoint { url: None, timeout_ms: 1, connect_timeout_ms: None, headers: Vec::new() };
        let callback = OwnCallback { method: "POST".to_owned(), url: "http://a/".to_owned() };
        let rule = DeliveryRule { callback: Some(callback), ..DeliveryRule::default() };
        (SubscriptionSpec { endpoint: Some(endpoint), ..spec() }, rule)
    }

    fn answered_with(status: u16, body: &'static str) -> CallOutcome {
        CallOutcome::Answered { status, retry_after: None, answer: Bytes::from_static(body.as_bytes()) }
    }

    #[test]
    fn a_callback_that_the_message_brings_succeeds_by_its_body_as_soraka_judges_it() {
        let (spec, rule) = brought();
        for body in [r#"{"ec":200,"em":"success","result":true}"#, r#"{"Result":true} and more"#] {
            let verdict = judge(&spec, Some(&rule), answered_with(200, body));
            assert_eq!(verdict, Verdict::Success { status: 200 }, "{body}");
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
            let Verdict::Failure(failure) = judge(&spec, Some(&rule), answered_with(status, body)) else {
                panic!("{status} {body} is no success");
            };
            assert_eq!((failure.status, failure.reason.as_str()), (Some(status), reason));
        }
    }

    #[test]
    fn the_body_does_not_count_for_an_endpoint_of_the_subscription_or_statuses_that_it_names() {
        let (mut spec, rule) = brought();
        let refused = || answered_with(200, r#"{"result":false}"#);
        let named = SubscriptionSpec { success: Some(vec![200]), ..spec.clone() };
        assert_eq!(judge(&named, Some(&rule), refused()), Verdict::Success { status: 200 });
        assert_eq!(judge(&spec, None, refused()), Verdict::Success { status: 200 });
        spec.endpoint.as_mut().unwrap().url = Some("http://b/".to_owned());
        assert_eq!(judge(&spec, Some(&rule), refused()), Verdict::Success { status: 200 });
    }

    #[test]
    fn gone_disables_unless_it_is_an_ordinary_failure() {
        assert_eq!(judge(&spec(), None, answered(410)), Verdict::Gone);
        let ordinary = SubscriptionSpec { gone: Gone::Fail, ..spec() };
        assert!(matches!(judge(&ordinary, None, answered(410)), Verdict::Failure(_)));
    }

    #[test]
    fn strain_and_what_is_the_messages_own_fault_are_told_apart() {
        let failure = |outcome| match judge(&spec(), None, outcome) {
            Verdict::Failure(failure) => failure,
            other => panic!("{other:?}"),
        };
        assert!(failure(answered(503)).strain);
        assert!(!failure(answered(500)).strain && failure(answered(500)).endpoint);
        assert!(!failure(answered(422)).endpoint);
        assert!(failure(answered(429)).throttled);
        let timeout = CallOutcome::Failed { why: CallFailure::Timeout, detail: "3 s".to_owned() };
        assert!(failure(timeout).strain);
        let no_worker = CallOutcome::Failed { why: CallFailure::NoWorker, detail: "none".to_owned() };
        assert!(matches!(judge(&spec(), None, no_worker), Verdict::NotTried { .. }));
    }

    #[test]
    fn what_a_part_of_the_system_did_not_take_says_so_in_words_and_whether_to_ask_again() {
        let failure = |again| match judge(&spec(), None, CallOutcome::NotTaken { reason: "no keys".to_owned(), again })
        {
            Verdict::Failure(failure) => failure,
            other => panic!("{other:?}"),
        };
        let wait = Some(Duration::from_secs(3));
        for again in [Again::Never, Again::Later(wait), Again::LaterForAll] {
            let failure = failure(again);
            assert_eq!((failure.status, failure.reason.as_str()), (None, "no keys"));
            assert_eq!(failure.is_final, again == Again::Never);
            assert_eq!(failure.endpoint, again == Again::LaterForAll, "{again:?}");
            assert_eq!(failure.retry_after, wait.filter(|_| again == Again::Later(wait)));
        }
    }
}
