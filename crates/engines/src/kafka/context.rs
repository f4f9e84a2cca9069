//! What librdkafka says of itself, handed on to `tracing`. Its errors about connections come again and again while a broker is
//! away, from every client that a process has, and are answered to callers anyway: they are log lines here and nothing else, and few.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// That no broker answers is said once in so long a time, by all clients of a process together.
const NO_BROKER_EVERY: Duration = Duration::from_secs(5);

static NO_BROKER: Mutex<Seldom> = Mutex::new(Seldom { said: None, unsaid: 0 });

/// The context of clients that have nothing to call back.
pub(super) struct Quiet;

pub(super) type Consumer = BaseConsumer<Quiet>;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Quiet {}

pub(super) fn log_line(level: RDKafkaLogLevel, facility: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(target: "librdkafka", "{facility}: {line}");
        }
        // A lost connection is an "error" to librdkafka, which then makes a new one.
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning if facility == "FAIL" => {
            tracing::debug!(target: "librdkafka", "{facility}: {line}");
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => tracing::warn!(target: "librdkafka", "{facility}: {line}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
            tracing::debug!(target: "librdkafka", "{facility}: {line}");
        }
    }
}

pub(super) fn log_error(error: &KafkaError, reason: &str) {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::AllBrokersDown) => {
            let unsaid = NO_BROKER.lock().unwrap_or_else(PoisonError::into_inner).say(Instant::now());
            if let Some(unsaid) = unsaid {
                tracing::warn!(target: "librdkafka", unsaid, "no broker answers: {reason}");
            }
        }
        Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
            tracing::debug!(target: "librdkafka", "{reason}");
        }
        _ => tracing::warn!(target: "librdkafka", "{error}: {reason}"),
    }
}

/// Something that would be said again and again.
struct Seldom {
    said: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// Whether it is to be said now; then how often it was left out since it was said last.
    fn say(&mut self, now: Instant) -> Option<u64> {
        if self.said.is_some_and(|said| now.duration_since(said) < NO_BROKER_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_and_again_is_said_seldom_and_counted() {
        let mut seldom = Seldom { said: None, unsaid: 0 };
        let began = Instant::now();
        let said: Vec<Option<u64>> = (0..12).map(|second| seldom.say(began + Duration::from_secs(second))).collect();
        assert_eq!(said.iter().flatten().collect::<Vec<_>>(), [&0, &4, &4]);
    }
}
