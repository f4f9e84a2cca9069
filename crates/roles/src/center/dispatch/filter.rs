//! Which messages a subscription wants. Pure.

use whimbrel_model::Record;
use whimbrel_model::record::HEADER_CONTENT_TYPE;

/// All of its conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    conditions: Vec<(Field, String)>,
    /// Only messages with this key, whatever else: a replay's.
    key: Option<Vec<u8>>,
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
        Self { conditions: conditions.collect(), key: key.map(|key| key.as_bytes().to_vec()) }
    }

    pub fn takes(&self, topic: &str, record: &Record) -> bool {
        let key = record.key.as_deref();
        if self.key.as_deref().is_some_and(|wanted| key != Some(wanted)) {
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
