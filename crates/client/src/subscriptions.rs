//! Requests about subscriptions: create, look up, pause, resume, seek, replay, dead letters, redrive, pull, acknowledge.

use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use whimbrel_api::dead_letters::{DeadLetterPage, Redrive, Redriven};
use whimbrel_api::pull::{AckBody, LeaseBody, NackBody, PullBody, PulledBatch, PulledMessage, Settled};
use whimbrel_api::stats::TopicFigures;
use whimbrel_api::subscriptions::{
    ReplayRange, SeekInfo, SeekTo, SubscriptionInfo, SubscriptionList, SubscriptionSettings,
};

use crate::client::{escaped, with_query};
use crate::{Client, ClientError};

impl Client {
    /// Creates the subscription, or changes it and keeps its progress.
    pub async fn put_subscription(
        &self,
        name: &str,
        settings: &SubscriptionSettings,
    ) -> Result<SubscriptionInfo, ClientError> {
        self.send_json(Method::PUT, &subscription_path(name, ""), settings).await
    }

    pub async fn subscriptions(&self) -> Result<Vec<SubscriptionInfo>, ClientError> {
        Ok(self.get::<SubscriptionList>("/v1/subscriptions").await?.subscriptions)
    }

    pub async fn subscription(&self, name: &str) -> Result<SubscriptionInfo, ClientError> {
        self.get(&subscription_path(name, "")).await
    }

    /// Deletes the subscription, with its retries, dead letters and progress.
    pub async fn delete_subscription(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&subscription_path(name, "")).await
    }

    pub async fn pause(&self, name: &str) -> Result<SubscriptionInfo, ClientError> {
        self.command(name, "/pause", &serde_json::json!({})).await
    }

    pub async fn resume(&self, name: &str) -> Result<SubscriptionInfo, ClientError> {
        self.command(name, "/resume", &serde_json::json!({})).await
    }

    /// Moves the subscription to another position. Results of deliveries in progress are ignored.
    pub async fn seek(&self, name: &str, to: &SeekTo) -> Result<SeekInfo, ClientError> {
        self.command(name, "/seek", to).await
    }

    /// Delivers a range again, beside the normal delivery.
    pub async fn replay(&self, name: &str, range: &ReplayRange) -> Result<SeekInfo, ClientError> {
        self.command(name, "/replay", range).await
    }

    pub async fn dead_letters(
        &self,
        name: &str,
        limit: Option<usize>,
        cursor: Option<&str>,
    ) -> Result<DeadLetterPage, ClientError> {
        let parameters = [("limit", limit.map(|limit| limit.to_string())), ("cursor", cursor.map(str::to_owned))];
        self.get(&with_query(&subscription_path(name, "/dead-letters"), &parameters)).await
    }

    /// Redrives the dead letters of these messages; `None`: all.
    pub async fn redrive(&self, name: &str, ids: Option<&[String]>) -> Result<Redriven, ClientError> {
        self.command(name, "/redrive", &ids.map_or_else(Redrive::all, Redrive::ids)).await
    }

    /// Pulls up to `max` messages, and waits up to `wait` for the first.
    pub async fn pull(&self, name: &str, max: usize, wait: Duration) -> Result<Vec<PulledMessage>, ClientError> {
        let body = PullBody { max: Some(max as u64), wait: Some(format!("{}ms", wait.as_millis())) };
        let request = self.request(Method::POST, &subscription_path(name, "/pull"));
        let pulled: PulledBatch = self.answer_json(request, &body, self.answer_wait() + wait).await?;
        Ok(pulled.messages)
    }

    pub async fn ack(&self, name: &str, ack_ids: &[String]) -> Result<Settled, ClientError> {
        self.command(name, "/ack", &AckBody { ack_ids: ack_ids.to_vec() }).await
    }

    /// Returns messages, to be handed out again after `delay`; `None`: by the retry schedule.
    pub async fn nack(&self, name: &str, ack_ids: &[String], delay: Option<&str>) -> Result<Settled, ClientError> {
        let body = NackBody { ack_ids: ack_ids.to_vec(), delay: delay.map(str::to_owned) };
        self.command(name, "/nack", &body).await
    }

    /// Sets the lease of messages to end `lease` from now.
    pub async fn extend_lease(&self, name: &str, ack_ids: &[String], lease: &str) -> Result<Settled, ClientError> {
        let body = LeaseBody { ack_ids: ack_ids.to_vec(), lease: Some(lease.to_owned()) };
        self.command(name, "/extend", &body).await
    }

    /// The metrics of a topic, minute by minute, between two times in RFC 3339.
    pub async fn topic_figures(
        &self,
        topic: &str,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Result<TopicFigures, ClientError> {
        let parameters = [("from", from.map(str::to_owned)), ("to", to.map(str::to_owned))];
        self.get(&with_query(&format!("/v1/stats/topics/{}", escaped(topic)), &parameters)).await
    }

    async fn command<T: DeserializeOwned>(
        &self,
        name: &str,
        action: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_json(Method::POST, &subscription_path(name, action), body).await
    }
}

fn subscription_path(name: &str, action: &str) -> String {
    format!("/v1/subscriptions/{}{action}", escaped(name))
}
