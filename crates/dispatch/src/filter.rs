//! Which messages a subscription wants. Pure.

use whimbrel_model::Record;
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::subscription::{DeliveryRule, HEADER_DELIVERY};

/// All of its conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    conditions: Vec<(Field, String)>,
    /// Only messages with this key, whatever else: a replay's.
    key: Option<Vec<u8>>,
    /// Only messages that bring a callback of their own: the endpoint has no URL to call for others.
    own_callbacks_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Key,
    Topic,
    Header(String),
}

impl Filter {
    /// Fields as `SubscriptionSpec::filter` names them. A field that is not known matches nothing: it was refused where it came in.
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

    /// The same for an endpoint without a URL: what brings no callback of its own is not for it.
    pub fn of_own_callbacks(self, own_callbacks_only: bool) -> Self {
        Self { own_callbacks_only, ..self }
    }

    pub fn takes(&self, topic: &str, record: &Record) -> bool {
        let key = record.key.as_deref();
        if self.key.as_deref().is_some_and(|wanted| key != Some(wanted)) {
            return false;
        }
        if self.own_callbacks_only && !brings_callback(record) {
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

fn brings_callback(record: &Record) -> bool {
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
    fn without_a_url_only_messages_that_bring_a_callback_are_taken() {
        let filter = Filter::default().of_own_callbacks(true);
        let bringing = r#"{"callback":{"method":"GET","url":"http://127.0.0.1/"}}"#;
        assert!(filter.takes("orders", &record("k", &[(HEADER_DELIVERY, bringing)])));
        assert!(!filter.takes("orders", &record("k", &[(HEADER_DELIVERY, r#"{"timeout_ms":5}"#)])));
        assert!(!filter.takes("orders", &record("k", &[])));
    }

    #[test]
    fn all_conditions_must_hold() {
        let wanted =
            BTreeMap::from([("headers.Type".to_owned(), "order.paid".to_owned()), ("key".to_owned(), "k1".to_owned())]);
        let filter = Filter::new(&wanted, None);
        assert!(filter.takes("orders", &record("k1", &[("type", "order.paid")])));
        assert!(!filter.takes("orders", &record("k2", &[("type", "order.paid")])));
        assert!(!filter.takes("orders", &record("k1", &[("type", "order.made")])));
        assert!(!filter.takes("orders", &record("k1", &[])));
        assert!(Filter::default().takes("orders", &record("k1", &[])));
    }

    #[test]
    fn a_replay_may_be_of_one_key() {
        let filter = Filter::new(&BTreeMap::new(), Some("k1"));
        assert!(filter.takes("orders", &record("k1", &[])));
        assert!(!filter.takes("orders", &record("k2", &[])));
    }
}
