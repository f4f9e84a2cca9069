//! Selects the messages that a subscription delivers. Pure.

use whimbrel_model::Record;
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY};

/// A conjunction of conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFilter {
    conditions: Vec<(Field, String)>,
    /// The key of a replay: only messages with this key match.
    key: Option<Vec<u8>>,
    /// Only messages with a callback of their own match, because the endpoint has no URL.
    own_callbacks_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Key,
    Topic,
    Header(String),
}

impl MessageFilter {
    /// Fields are named as in `SubscriptionSpec::filter`. An unknown field matches no message; the API rejects such fields.
    pub fn new<'a>(conditions: impl IntoIterator<Item = (&'a String, &'a String)>, key: Option<&str>) -> Self {
        let conditions = conditions.into_iter().map(|(field, value)| {
            let field = match field.as_str() {
                "key" => Field::Key,
                "topic" => Field::Topic,
                "content_type" => Field::Header(HEADER_CONTENT_TYPE.to_owned()),
                other => Field::Header(other.strip_prefix("headers.").unwrap_or(other).to_ascii_lowercase()),
            };
            (field, value.clone())
        });
        let key = key.map(|key| key.as_bytes().to_vec());
        Self { conditions: conditions.collect(), key, own_callbacks_only: false }
    }

    /// The same filter for an endpoint without a URL: only messages with a callback of their own match.
    pub fn with_own_callbacks_only(self, own_callbacks_only: bool) -> Self {
        Self { own_callbacks_only, ..self }
    }

    pub fn takes(&self, topic: &str, record: &Record) -> bool {
        let key = record.key.as_deref();
        if self.key.as_deref().is_some_and(|wanted| key != Some(wanted)) {
            return false;
        }
        if self.own_callbacks_only && !has_own_callback(record) {
            return false;
        }
        self.conditions.iter().all(|(field, wanted)| match field {
            Field::Key => key == Some(wanted.as_bytes()),
            Field::Topic => topic == wanted,
            Field::Header(name) => {
                let mut headers = record.headers.iter();
                headers.any(|(other, value)| other.eq_ignore_ascii_case(name) && value == wanted.as_bytes())
            }
        })
    }
}

fn has_own_callback(record: &Record) -> bool {
    let rule = record.headers.get(HEADER_DELIVERY);
    let rule = rule.and_then(|json| serde_json::from_slice::<DeliveryRule>(json).ok());
    rule.is_some_and(|rule| rule.callback.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use whimbrel_model::{Headers, Timestamp};

    fn record(key: &str, headers: &[(&str, &str)]) -> Record {
        let mut builder = Headers::builder();
        for (name, value) in headers {
            builder.push(name, value.as_bytes());
        }
        Record {
            key: Some(key.to_owned().into()),
            value: bytes::Bytes::new(),
            headers: builder.take(),
            timestamp: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn without_a_url_only_messages_with_their_own_callback_match() {
        let filter = MessageFilter::default().with_own_callbacks_only(true);
        let bringing = r#"{"callback":{"method":"GET","url":"http://127.0.0.1/"}}"#;
        assert!(filter.takes("orders", &record("k", &[(HEADER_DELIVERY, bringing)])));
        assert!(!filter.takes("orders", &record("k", &[(HEADER_DELIVERY, r#"{"timeout_ms":5}"#)])));
        assert!(!filter.takes("orders", &record("k", &[])));
    }

    #[test]
    fn all_conditions_must_hold() {
        let wanted =
            BTreeMap::from([("headers.Type".to_owned(), "order.paid".to_owned()), ("key".to_owned(), "k1".to_owned())]);
        let filter = MessageFilter::new(&wanted, None);
        assert!(filter.takes("orders", &record("k1", &[("type", "order.paid")])));
        assert!(!filter.takes("orders", &record("k2", &[("type", "order.paid")])));
        assert!(!filter.takes("orders", &record("k1", &[("type", "order.made")])));
        assert!(!filter.takes("orders", &record("k1", &[])));
        assert!(MessageFilter::default().takes("orders", &record("k1", &[])));
    }

    #[test]
    fn a_replay_can_be_limited_to_one_key() {
        let filter = MessageFilter::new(&BTreeMap::new(), Some("k1"));
        assert!(filter.takes("orders", &record("k1", &[])));
        assert!(!filter.takes("orders", &record("k2", &[])));
    }
}
