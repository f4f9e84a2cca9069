//! Changes of subscriptions: create, change, pause, resume, disable, delete.

use std::sync::Arc;

use whimbrel_model::ports::CatalogueError;
use whimbrel_model::subscription::{
    DEAD_TOPIC_PREFIX, RunState, SECRET_OVERLAP_DEFAULT, SigningSecret, StoredSubscription, dead_topic, retry_topic,
    subscription_key,
};
use whimbrel_model::{EVENTS_TOPIC, Event, SubscriptionNumber, SubscriptionSpec, Timestamp};

use super::error::SubscriptionError;
use super::registry::{CONFLICT_TRIES, ChangeGuard, SUBSCRIPTIONS_MAX, Subscription, SubscriptionRegistry};
use super::starts::{Truncation, start_at};
use super::system::is_system_subscription;
use crate::topics::{Placement, Topic, TopicChange, TopicError};

pub const TOPICS_MAX: usize = 100;
/// The most secrets that sign at the same time: the present one and its predecessor.
const SECRETS_LIVE_MAX: usize = 2;

#[derive(Clone, PartialEq, Eq)]
pub enum SecretChange {
    /// Keep the present secrets. A new subscription has none.
    Keep,
    /// Remove all secrets: callbacks are not signed.
    Remove,
    /// Use this secret. Its predecessor also signs for one day.
    Set(String),
}

#[derive(Debug)]
pub struct SubscriptionPutOutcome {
    pub subscription: Arc<Subscription>,
    pub created: bool,
    /// Partitions in which the log no longer has the requested start.
    pub truncated: Vec<Truncation>,
}

/// The request that a truncation affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TruncatedBy {
    Start,
    Seek,
}

/// Checks that a topic may be subscribed to: users' topics, dead letters, and events.
pub fn check_readable(topic: &str) -> Result<(), &'static str> {
    let is_for_reading = !topic.starts_with('_') || topic == EVENTS_TOPIC || topic.starts_with(DEAD_TOPIC_PREFIX);
    if is_for_reading { Ok(()) } else { Err("it is a system topic") }
}

impl SubscriptionRegistry {
    /// Creates a subscription, or changes its specification. Number, run, starts and progress stay. `spec.start` applies to a new
    /// subscription and to new topics of an existing one; the secrets in `spec` are ignored in favour of `secret`. Callers must spawn
    /// this: it must not be cancelled.
    pub async fn put(
        &self,
        name: &str,
        spec: SubscriptionSpec,
        secret: SecretChange,
    ) -> Result<SubscriptionPutOutcome, SubscriptionError> {
        let topics = self.resolve(name, &spec).await?;
        let changing = self.changing().await;
        for _ in 0..CONFLICT_TRIES {
            let made = match self.entry(name).await? {
                Some((stored, _)) if stored.deleting => return Err(SubscriptionError::Deleting(name.to_owned())),
                Some((stored, version)) => {
                    self.change(name, stored, version, &spec, &secret, &topics, &changing).await?
                }
                None => self.create(name, &spec, &secret, &topics, &changing).await?,
            };
            if let Some(made) = made {
                return Ok(made);
            }
        }
        Err(conflict(name))
    }

    /// The topics of a subscription. Missing topics are created if a first publish would create them.
    async fn resolve(&self, name: &str, spec: &SubscriptionSpec) -> Result<Vec<Arc<Topic>>, SubscriptionError> {
        let mut topics = Vec::with_capacity(spec.topics.len());
        for topic in &spec.topics {
            let unreadable = |why| SubscriptionError::Unreadable { topic: topic.clone(), why };
            if !is_system_subscription(name) {
                check_readable(topic).map_err(unreadable)?;
            }
            if *topic == dead_topic(name) {
                return Err(unreadable("its own dead letters would be delivered to it in an endless loop"));
            }
            if topic.starts_with('_') {
                topics.push(self.ports.registry.find(topic).await?);
                continue;
            }
            drop(self.ports.registry.enter(topic, Placement::Free).await?);
            let found = self.ports.registry.get(topic);
            topics.push(found.ok_or_else(|| TopicError::Unknown(topic.clone()))?);
        }
        Ok(topics)
    }

    async fn create(
        &self,
        name: &str,
        spec: &SubscriptionSpec,
        secret: &SecretChange,
        topics: &[Arc<Topic>],
        changing: &ChangeGuard<'_>,
    ) -> Result<Option<SubscriptionPutOutcome>, SubscriptionError> {
        if self.count() >= SUBSCRIPTIONS_MAX {
            return Err(SubscriptionError::TooMany);
        }
        // Its own topics are created first, so that an entry never refers to missing topics. They may exist already after an interrupted
        // creation.
        for own in [retry_topic(name), dead_topic(name)] {
            let one_partition = TopicChange { partitions: Some(1), ..TopicChange::default() };
            self.ports.registry.put(&own, one_partition).await?;
        }
        let (mut starts, mut truncated) = (Vec::new(), Vec::new());
        for topic in topics {
            let (start, gone) = start_at(&*self.ports.log, topic, spec.start.into()).await?;
            starts.push(start);
            truncated.extend(gone);
        }
        let now = self.ports.clock.now();
        let stored = StoredSubscription {
            number: self.next_number().await?,
            spec: SubscriptionSpec { secrets: secrets_after(&[], secret, now), ..spec.clone() },
            state: RunState::Active,
            run: 1,
            last_run: 1,
            starts,
            replays: Vec::new(),
            created_at_ms: now.as_millis(),
            deleting: false,
        };
        let Some(subscription) = self.write(name, stored, None, changing).await? else { return Ok(None) };
        self.report(Event::new("subscription_created", format!("subscription `{name}` was created")), name);
        self.report_truncated(TruncatedBy::Start, name, &truncated);
        Ok(Some(SubscriptionPutOutcome { subscription, created: true, truncated }))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of the entry and of the request, each used once")]
    async fn change(
        &self,
        name: &str,
        stored: StoredSubscription,
        version: u64,
        spec: &SubscriptionSpec,
        secret: &SecretChange,
        topics: &[Arc<Topic>],
        changing: &ChangeGuard<'_>,
    ) -> Result<Option<SubscriptionPutOutcome>, SubscriptionError> {
        let mut after = stored.clone();
        let mut truncated = Vec::new();
        for topic in topics {
            // A topic that the subscription has, or had before, continues at its progress.
            if !after.starts.iter().any(|start| *start.topic == *topic.name) {
                let (start, gone) = start_at(&*self.ports.log, topic, spec.start.into()).await?;
                after.starts.push(start);
                truncated.extend(gone);
            }
        }
        let secrets = secrets_after(&stored.spec.secrets, secret, self.ports.clock.now());
        // The recorded start does not change, because it is not applied again.
        after.spec = SubscriptionSpec { secrets, start: stored.spec.start, ..spec.clone() };
        if after == stored {
            let subscription = Arc::new(Subscription { name: name.into(), stored, version });
            return Ok(Some(SubscriptionPutOutcome { subscription, created: false, truncated }));
        }
        let Some(subscription) = self.write(name, after, Some(version), changing).await? else { return Ok(None) };
        self.report(Event::new("subscription_changed", format!("subscription `{name}` was changed")), name);
        self.report_truncated(TruncatedBy::Start, name, &truncated);
        Ok(Some(SubscriptionPutOutcome { subscription, created: false, truncated }))
    }

    /// Pauses deliveries until the subscription is resumed. A disabled subscription stays disabled.
    pub async fn pause(&self, name: &str) -> Result<Arc<Subscription>, SubscriptionError> {
        self.set_state(name, |state| matches!(state, RunState::Active).then_some(RunState::Paused)).await
    }

    pub async fn resume(&self, name: &str) -> Result<Arc<Subscription>, SubscriptionError> {
        self.set_state(name, |state| (*state != RunState::Active).then_some(RunState::Active)).await
    }

    pub async fn disable(
        &self,
        number: SubscriptionNumber,
        reason: &str,
    ) -> Result<Arc<Subscription>, SubscriptionError> {
        let name = self.name_of(number)?;
        let at_ms = self.ports.clock.now().as_millis();
        let disabled = || RunState::Disabled { reason: reason.to_owned(), at_ms };
        self.set_state(&name, |state| matches!(state, RunState::Active).then(disabled)).await
    }

    async fn set_state(
        &self,
        name: &str,
        next: impl Fn(&RunState) -> Option<RunState>,
    ) -> Result<Arc<Subscription>, SubscriptionError> {
        let (subscription, changed) = self
            .update(name, |stored| match next(&stored.state) {
                Some(state) => {
                    stored.state = state;
                    Ok(true)
                }
                None => Ok(false),
            })
            .await?;
        if changed {
            let event = match &subscription.stored.state {
                RunState::Active => Event::new("subscription_resumed", format!("subscription `{name}` was resumed")),
                RunState::Paused => Event::new("subscription_paused", format!("subscription `{name}` was paused")),
                RunState::Disabled { reason, .. } => {
                    let detail = format!("subscription `{name}` was disabled until it is resumed: {reason}");
                    Event::failure("subscription_disabled", detail).with("reason", reason)
                }
            };
            self.report(event, name);
        }
        Ok(subscription)
    }

    /// Marks a subscription as being deleted, which stops its owner. The caller then deletes its data and calls
    /// [`SubscriptionRegistry::finish_delete`]. Returns the entry if it is marked already.
    pub async fn begin_delete(&self, name: &str) -> Result<Arc<Subscription>, SubscriptionError> {
        let changing = self.changing().await;
        for _ in 0..CONFLICT_TRIES {
            let unknown = || SubscriptionError::Unknown(name.to_owned());
            let (mut stored, version) = self.entry(name).await?.ok_or_else(unknown)?;
            if stored.deleting {
                return Ok(Arc::new(Subscription { name: name.into(), stored, version }));
            }
            stored.deleting = true;
            if let Some(marked) = self.write(name, stored, Some(version), &changing).await? {
                return Ok(marked);
            }
        }
        Err(conflict(name))
    }

    /// Removes the entry of a subscription after its data was deleted.
    pub async fn finish_delete(&self, marked: &Subscription) -> Result<(), SubscriptionError> {
        let changing = self.changing().await;
        match self.erase(&marked.name, marked.version, &changing).await {
            // Another caller finished the deletion.
            Err(SubscriptionError::Catalogue(CatalogueError::Conflict { found: None, .. })) => return Ok(()),
            outcome => outcome?,
        }
        let detail = format!("subscription `{}` was deleted", marked.name);
        self.report(Event::new("subscription_deleted", detail), &marked.name);
        Ok(())
    }

    /// Changes an entry that is not being deleted, unless `change` returns false. Returns the entry, and whether it was changed.
    pub(super) async fn update(
        &self,
        name: &str,
        change: impl Fn(&mut StoredSubscription) -> Result<bool, SubscriptionError>,
    ) -> Result<(Arc<Subscription>, bool), SubscriptionError> {
        let changing = self.changing().await;
        for _ in 0..CONFLICT_TRIES {
            let (mut stored, version) = self.live_entry(name).await?;
            if !change(&mut stored)? {
                return Ok((Arc::new(Subscription { name: name.into(), stored, version }), false));
            }
            if let Some(subscription) = self.write(name, stored, Some(version), &changing).await? {
                return Ok((subscription, true));
            }
        }
        Err(conflict(name))
    }

    /// The entry of a subscription that is not being deleted.
    pub(super) async fn live_entry(&self, name: &str) -> Result<(StoredSubscription, u64), SubscriptionError> {
        let entry = self.entry(name).await?.filter(|(stored, _)| !stored.deleting);
        entry.ok_or_else(|| SubscriptionError::Unknown(name.to_owned()))
    }

    /// Reports partitions in which delivery starts at the oldest kept message instead of the requested start.
    pub(super) fn report_truncated(&self, by: TruncatedBy, name: &str, truncated: &[Truncation]) {
        for Truncation { topic, partition, first } in truncated {
            let detail = format!(
                "`{name}` starts at offset {first} of `{topic}/{partition}`, the oldest kept message: retention removed the requested ones"
            );
            let event = match by {
                TruncatedBy::Start => Event::warning("start_truncated", detail),
                TruncatedBy::Seek => Event::warning("seek_truncated", detail),
            };
            let event = event.with("topic", topic).with("partition", partition).with("first_offset", first);
            self.report(event, name);
        }
    }
}

pub(super) fn conflict(name: &str) -> SubscriptionError {
    CatalogueError::Conflict { key: subscription_key(name), found: None }.into()
}

/// The secrets after a request, the newest first.
fn secrets_after(before: &[SigningSecret], wish: &SecretChange, now: Timestamp) -> Vec<SigningSecret> {
    let is_live = |each: &&SigningSecret| each.until_ms.is_none_or(|until| until > now.as_millis());
    match wish {
        SecretChange::Keep => before.to_vec(),
        SecretChange::Remove => Vec::new(),
        SecretChange::Set(secret) if before.first().is_some_and(|present| present.secret == *secret) => before.to_vec(),
        SecretChange::Set(secret) => {
            let ends = now.as_millis() + SECRET_OVERLAP_DEFAULT.as_millis() as i64;
            let earlier =
                before.iter().filter(is_live).filter(|each| each.secret != *secret).map(|each| SigningSecret {
                    secret: each.secret.clone(),
                    until_ms: Some(each.until_ms.map_or(ends, |until| until.min(ends))),
                });
            let new = SigningSecret { secret: secret.clone(), until_ms: None };
            [new].into_iter().chain(earlier).take(SECRETS_LIVE_MAX).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(before: &[SigningSecret], secret: &str, now_ms: i64) -> Vec<SigningSecret> {
        secrets_after(before, &SecretChange::Set(secret.to_owned()), Timestamp::from_millis(now_ms))
    }

    fn signing(secrets: &[SigningSecret]) -> Vec<(&str, Option<i64>)> {
        secrets.iter().map(|each| (each.secret.as_str(), each.until_ms)).collect()
    }

    #[test]
    fn a_secret_signs_for_a_day_beside_its_successor() {
        const DAY_MS: i64 = 86_400_000;
        let first = set(&[], "a", 0);
        let second = set(&first, "b", 1_000);
        assert_eq!(signing(&second), [("b", None), ("a", Some(1_000 + DAY_MS))]);
        assert_eq!(set(&second, "b", 2_000), second, "the same secret again changes nothing");
        let third = set(&second, "c", 1_000 + DAY_MS);
        assert_eq!(signing(&third), [("c", None), ("b", Some(1_000 + 2 * DAY_MS))], "expired secrets are removed");
    }

    #[test]
    fn at_most_two_secrets_sign_and_a_removal_removes_all() {
        let secrets = set(&set(&set(&[], "a", 0), "b", 1), "c", 2);
        assert_eq!(secrets.len(), 2);
        assert_eq!(secrets[1].secret, "b");
        assert!(secrets_after(&secrets, &SecretChange::Remove, Timestamp::from_millis(3)).is_empty());
        assert_eq!(secrets_after(&secrets, &SecretChange::Keep, Timestamp::from_millis(3)), secrets);
    }

    #[test]
    fn of_the_system_topics_only_events_and_dead_letters_can_be_subscribed_to() {
        for topic in ["orders", "_events", "_dead.billing"] {
            assert!(check_readable(topic).is_ok(), "{topic}");
        }
        for topic in ["_holds", "_retry.billing", "_push", "_deadbeef"] {
            assert!(check_readable(topic).is_err(), "{topic}");
        }
    }
}
