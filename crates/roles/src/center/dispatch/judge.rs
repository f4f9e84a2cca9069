//! What an answer to a callback means. Pure.

use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::SubscriptionSpec;
use whimbrel_model::ports::{Again, CallFailure, CallOutcome};
use whimbrel_model::subscription::Gone;

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

pub fn judge(spec: &SubscriptionSpec, outcome: CallOutcome) -> Verdict {
    match outcome {
        CallOutcome::Answered { status, retry_after, answer } => {
            let succeeded = match &spec.success {
                Some(wanted) => wanted.contains(&status),
                None => (200..300).contains(&status),
            };
            if succeeded {
                return Verdict::Success { status };
            }
            if status == 410 && spec.gone == Gone::Disable {
                return Verdict::Gone;
            }
            Verdict::Failure(Failure {
                status: Some(status),
                reason: format!("answered {status}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::subscription::Mode;

    fn spec() -> SubscriptionSpec {
        SubscriptionSpec::new(vec!["orders".to_owned()], Mode::Push, None)
    }

    fn answered(status: u16) -> CallOutcome {
        CallOutcome::Answered { status, retry_after: None, answer: Bytes::new() }
    }

    #[test]
    fn any_2xx_is_success_unless_it_is_narrowed() {
        assert_eq!(judge(&spec(), answered(204)), Verdict::Success { status: 204 });
        let narrowed = SubscriptionSpec { success: Some(vec![200]), ..spec() };
        assert!(matches!(judge(&narrowed, answered(204)), Verdict::Failure(_)));
        assert!(matches!(judge(&spec(), answered(302)), Verdict::Failure(_)), "redirects are not followed");
    }

    #[test]
    fn gone_disables_unless_it_is_an_ordinary_failure() {
        assert_eq!(judge(&spec(), answered(410)), Verdict::Gone);
        let ordinary = SubscriptionSpec { gone: Gone::Fail, ..spec() };
        assert!(matches!(judge(&ordinary, answered(410)), Verdict::Failure(_)));
    }

    #[test]
    fn strain_and_what_is_the_messages_own_fault_are_told_apart() {
        let failure = |outcome| match judge(&spec(), outcome) {
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
        assert!(matches!(judge(&spec(), no_worker), Verdict::NotTried { .. }));
    }

    #[test]
    fn what_a_part_of_the_system_did_not_take_says_so_in_words_and_whether_to_ask_again() {
        let failure = |again| match judge(&spec(), CallOutcome::NotTaken { reason: "no keys".to_owned(), again }) {
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
