//! Requests about holds: hold, extend, withdraw, fire, look up, list, count.

use bytes::Bytes;
use http::Method;
use whimbrel_api::holds::{HoldCounts, HoldInfo, HoldOutcome, HoldPage};
use whimbrel_api::messages::{Accepted, Held};

use crate::client::{escaped, header_value, with_query};
use crate::{Client, ClientError, Extension, HoldFilter, NewMessage};

impl Client {
    /// Holds a message until its `delay` or `deliver_at`. The hold is durable when this returns. The server publishes a message whose due
    /// time has passed at once, which is an error here; [`Client::publish`] accepts both results.
    pub async fn hold(&self, topic: &str, message: &NewMessage) -> Result<Held, ClientError> {
        if message.delay.is_none() && message.deliver_at.is_none() {
            return Err(ClientError::BadRequest("a hold needs `delay` or `deliver_at`".into()));
        }
        match self.publish(topic, message).await? {
            Accepted::Held(held) => Ok(held),
            Accepted::Published(place) => Err(ClientError::Unexpected {
                server: self.server().to_owned(),
                status: 201,
                shown: format!("the message {} was published at once", place.id),
            }),
        }
    }

    /// Looks up a hold by its id, at the owner of its shard.
    pub async fn look(&self, id: &str) -> Result<HoldInfo, ClientError> {
        self.get(&hold_path(id, "")).await
    }

    /// Changes the due time of a hold, in either direction.
    pub async fn extend(&self, id: &str, extension: &Extension) -> Result<HoldOutcome, ClientError> {
        let mut request = self.request(Method::POST, &hold_path(id, "/extend"));
        if let Some(key) = &extension.idempotency_key {
            request = request.header("idempotency-key", header_value("idempotency-key", key)?);
        }
        self.answer_json(request, &extension.body(), self.answer_wait()).await
    }

    /// Withdraws a hold. If this succeeds, its message never reaches its topic.
    pub async fn withdraw(&self, id: &str) -> Result<HoldOutcome, ClientError> {
        self.answer(self.request(Method::DELETE, &hold_path(id, "")), Bytes::new(), self.answer_wait()).await
    }

    /// Fires a hold now, before its due time.
    pub async fn fire(&self, id: &str) -> Result<HoldOutcome, ClientError> {
        self.answer(self.request(Method::POST, &hold_path(id, "/fire")), Bytes::new(), self.answer_wait()).await
    }

    /// Lists a page of holds in due order.
    pub async fn holds(&self, filter: &HoldFilter) -> Result<HoldPage, ClientError> {
        self.get(&with_query("/v1/holds", &parameters_of(filter))).await
    }

    /// Counts pending holds by due time. `limit`, `cursor` and `state` of the filter are ignored.
    pub async fn count_holds(&self, filter: &HoldFilter) -> Result<HoldCounts, ClientError> {
        let counted = HoldFilter { limit: None, cursor: None, state: None, ..filter.clone() };
        self.get(&with_query("/v1/holds/count", &parameters_of(&counted))).await
    }
}

fn hold_path(id: &str, action: &str) -> String {
    format!("/v1/holds/{}{action}", escaped(id))
}

fn parameters_of(filter: &HoldFilter) -> [(&'static str, Option<String>); 6] {
    let HoldFilter { topic, from, to, state, limit, cursor } = filter.clone();
    let limit = limit.map(|limit| limit.to_string());
    [("topic", topic), ("from", from), ("to", to), ("state", state), ("limit", limit), ("cursor", cursor)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_filter_contains_only_the_given_members() {
        let query_of = |filter: &HoldFilter| with_query("", &parameters_of(filter));
        assert_eq!(query_of(&HoldFilter::default()), "");
        let filter = HoldFilter {
            topic: Some("a&b".into()),
            from: Some("2026-01-31T09:30:00Z".into()),
            limit: Some(5),
            ..HoldFilter::default()
        };
        assert_eq!(query_of(&filter), "?topic=a%26b&from=2026-01-31T09%3A30%3A00Z&limit=5");
    }

    #[test]
    fn an_id_is_escaped_in_a_path() {
        assert_eq!(hold_path("a/../b", "/fire"), "/v1/holds/a%2F..%2Fb/fire");
    }

    #[test]
    fn a_hold_without_a_time_is_rejected_before_anything_is_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let client = Client::new("http://127.0.0.1:1").unwrap();
        let refused = runtime.block_on(client.hold("orders", &NewMessage::text("x")));
        assert!(matches!(refused, Err(ClientError::BadRequest(_))), "{refused:?}");
    }
}
