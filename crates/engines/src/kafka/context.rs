//! What librdkafka says of itself, handed on to `tracing`. Its errors about connections come again and again while a broker is
//! away, and are answered to callers anyway: they are log lines here and nothing else.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

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
        Some(RDKafkaErrorCode::AllBrokersDown) => tracing::warn!(target: "librdkafka", "no broker answers: {reason}"),
        Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
            tracing::debug!(target: "librdkafka", "{reason}");
        }
        _ => tracing::warn!(target: "librdkafka", "{error}: {reason}"),
    }
}
