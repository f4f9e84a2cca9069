//! Requests about subscriptions: create, look up, pause, resume, seek, replay, dead letters, redrive, pull, acknowledge.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::escaped;
use crate::{
    Client, ClientError, DeadLetterPage, PulledMessage, ReplayRange, SeekTo, Settled, SubscriptionInfo,
    SubscriptionSettings, TopicFigures,
};

impl Client {
    /// Creates the subscription, or changes it and keeps its progress.
    pub async fn put_subscription(
        &self,
        name: &str,
        settings: &SubscriptionSettings,
    ) -> Result<SubscriptionInfo, ClientError> {
        self.ask_json(Method::PUT, &subscription_path(name, ""), settings, self.answer_wait()).await
    }

    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionInfo>, ClientError> {
        #[derive(Deserialize)]
        struct SubscriptionList {
            subscriptions: Vec<SubscriptionInfo>,
        }
        let request = self.request(Method::GET, "/v1/subscriptions");
        let found: SubscriptionList = self.answer(request, Bytes::new(), self.answer_wait()).await?;
        Ok(found.subscriptions)
    }

    pub async fn subscription(&self, name: &str) -> Result<SubscriptionInfo, ClientError> {
        let request = self.request(Method::GET, &subscription_path(name, ""));
        self.answer(request, Bytes::new(), self.answer_wait()).await
    }

    /// Deletes the subscription, with its retries, dead letters and progress.
    pub async fn delete_subscription(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&subscription_path(name, "")).await
    }

    pub async fn pause(&self, name: &str) -> Result<Value, ClientError> {
        self.command(name, "/pause", &json!({})).await
    }

    pub async fn resume(&self, name: &str) -> Result<Value, ClientError> {
        self.command(name, "/resume", &json!({})).await
    }

    /// Moves the subscription to another position. Results of deliveries in progress are ignored.
    pub async fn seek(&self, name: &str, to: &SeekTo) -> Result<Value, ClientError> {
        self.command(name, "/seek", to).await
    }

    /// Delivers a range again, beside the normal delivery.
    pub async fn replay(&self, name: &str, range: &ReplayRange) -> Result<Value, ClientError> {
        self.command(name, "/replay", range).await
    }

    pub async fn dead_letters(
        &self,
        name: &str,
        limit: Option<usize>,
        cursor: Option<&str>,
    ) -> Result<DeadLetterPage, ClientError> {
        let mut path = format!("{}?", subscription_path(name, "/dead-letters"));
        if let Some(limit) = limit {
            let _ = write!(path, "limit={limit}&");
        }
        if let Some(cursor) = cursor {
            let _ = write!(path, "cursor={}", escaped(cursor));
        }
        let request = self.request(Method::GET, path.trim_end_matches(['?', '&']));
        self.answer(request, Bytes::new(), self.answer_wait()).await
    }

    /// Redrives the dead letters of these messages; `None`: all.
    pub async fn redrive(&self, name: &str, ids: Option<&[String]>) -> Result<Value, ClientError> {
        let body = ids.map_or_else(|| json!({ "all": true }), |ids| json!({ "ids": ids }));
        self.command(name, "/redrive", &body).await
    }

    /// Pulls up to `max` messages, and waits up to `wait` for the first.
    pub async fn pull(&self, name: &str, max: usize, wait: Duration) -> Result<Vec<PulledMessage>, ClientError> {
        #[derive(Deserialize)]
        struct PulledBatch {
            messages: Vec<PulledMessage>,
        }
        let body = json!({ "max": max, "wait": format!("{}ms", wait.as_millis()) });
        let path = subscription_path(name, "/pull");
        let pulled: PulledBatch = self.ask_json(Method::POST, &path, &body, self.answer_wait() + wait).await?;
        Ok(pulled.messages)
    }

    pub async fn ack(&self, name: &str, ack_ids: &[String]) -> Result<Settled, ClientError> {
        self.command(name, "/ack", &json!({ "ack_ids": ack_ids })).await
    }

    /// Returns messages, to be handed out again after `delay`; `None`: by the retry schedule.
    pub async fn nack(&self, name: &str, ack_ids: &[String], delay: Option<&str>) -> Result<Settled, ClientError> {
        let mut body = json!({ "ack_ids": ack_ids });
        if let Some(delay) = delay {
            body["delay"] = delay.into();
        }
        self.command(name, "/nack", &body).await
    }

    /// Sets the lease of messages to end `lease` from now.
    pub async fn extend_lease(&self, name: &str, ack_ids: &[String], lease: &str) -> Result<Settled, ClientError> {
        self.command(name, "/extend", &json!({ "ack_ids": ack_ids, "lease": lease })).await
    }

    /// The metrics of a topic, minute by minute, between two times in RFC 3339.
    pub async fn topic_figures(
        &self,
        topic: &str,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<TopicFigures, ClientError> {
        let mut path = format!("/v1/stats/topics/{}?", escaped(topic));
        for (name, value) in [("from", from), ("to", to)] {
            if let Some(value) = value {
                let _ = write!(path, "{name}={}&", escaped(value));
            }
        }
        let request = self.request(Method::GET, path.trim_end_matches(['?', '&']));
        self.answer(request, Bytes::new(), self.answer_wait()).await
    }

    async fn command<T: DeserializeOwned>(
        &self,
        name: &str,
        action: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.ask_json(Method::POST, &subscription_path(name, action), body, self.answer_wait()).await
    }

    async fn ask_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::BadRequest(error.to_string()))?;
        let request = self.request(method, path).header(header::CONTENT_TYPE, "application/json");
        self.answer(request, body.into(), wait).await
    }
}

fn subscription_path(name: &str, action: &str) -> String {
    format!("/v1/subscriptions/{}{action}", escaped(name))
}
