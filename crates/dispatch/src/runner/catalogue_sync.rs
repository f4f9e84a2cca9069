//! Follows the catalogue's entry of the subscription, and the topics that it reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::{CallTarget, DispatchReply, ProgressKey, ProgressRow};
use whimbrel_model::subscription::{Mode, Ordering, dead_topic, retry_topic, start_in};
use whimbrel_model::{Event, PartitionId, Record, TopicNumber};

use super::SubscriptionRunner;
use crate::breaker::Breaker;
use crate::concurrency_limit::ConcurrencyLimit;
use crate::delivery_line::{DeliveryLine, LineRules};
use crate::message_filter::MessageFilter;
use crate::progress_format::{self, MalformedProgress};
use crate::throttle::Throttle;
use crate::window::{PartitionResume, WindowLimits};
use whimbrel_catalogue::topics::Topic;

pub(super) struct SourceTopic {
    pub topic: Arc<str>,
    pub is_retry: bool,
    /// The version of the topic that the runner follows.
    pub version: u64,
}

impl SubscriptionRunner {
    /// Applies the present entry of the catalogue.
    pub(super) fn follow(&mut self) {
        let subscription = Arc::clone(&self.subscription);
        let stored = &subscription.stored;
        let spec = &stored.spec;
        self.concurrency.set_most(spec.concurrency);
        let url = spec.endpoint.as_ref().and_then(|endpoint| endpoint.url.clone());
        let is_resumed = stored.is_active() && !self.was_active;
        self.was_active = stored.is_active();
        // An operator changed the URL or resumed the subscription: endpoint health is reset, and parked messages are retried now.
        if self.called_url != url || is_resumed {
            self.called_url = url;
            self.forget_health(spec.concurrency);
            let now = self.now();
            self.lines.values_mut().for_each(|line| line.window.hurry(now));
        }
        self.throttle = spec.rate.map(Throttle::new);
        self.targets.clear();
        let rules = LineRules {
            retry: spec.retry.clone(),
            on_exhausted: spec.on_exhausted,
            blocked_sleep: Duration::from_millis(spec.blocked_sleep_ms),
            in_place: spec.retries_in_place(),
        };
        let wanted: Vec<(u32, u32)> = std::iter::once((0, stored.run))
            .chain(stored.replays.iter().map(|replay| (replay.run, replay.run)))
            .collect();
        let gone: Vec<u32> =
            self.lines.keys().copied().filter(|line| !wanted.iter().any(|(each, _)| each == line)).collect();
        for line in gone {
            self.lines.remove(&line);
        }
        for (number, run) in wanted {
            match self.lines.get_mut(&number) {
                Some(line) if line.run == run && line.window.ordering() == spec.ordering => line.rules = rules.clone(),
                _ => self.make_line(number, run, spec.ordering, rules.clone()),
            }
        }
        self.follow_topics();
        self.leases.forget_lines(|line, incarnation| {
            self.lines.get(&line).is_some_and(|each| each.incarnation == incarnation)
        });
        if spec.mode == Mode::Push {
            self.leases.refuse_pulls();
            let now = self.now();
            for out in self.leases.take_all() {
                if let Some(line) = self.line_at(out.line, out.incarnation) {
                    line.not_tried(out.ticket, now);
                }
            }
        }
        let version = subscription.version;
        let (ready, waiting) =
            std::mem::take(&mut self.catching_up).into_iter().partition(|(wanted, _)| *wanted <= version);
        self.catching_up = waiting;
        for (_, reply) in ready {
            // The caller may have left.
            let _ = reply.send(Ok(DispatchReply::CaughtUp));
        }
    }

    fn forget_health(&mut self, concurrency: u32) {
        self.breaker = Breaker::new(self.context.settings.breaker);
        self.concurrency = ConcurrencyLimit::new(concurrency);
        self.held_off = None;
        self.fails_no_more();
    }

    /// Creates a line from its last progress. Deliveries in flight of an earlier line with that number are void and repeated.
    fn make_line(&mut self, number: u32, run: u32, ordering: Ordering, rules: LineRules) {
        if let Some(earlier) = self.lines.remove(&number) {
            // Its progress in memory is newer than the saved one. A new run starts afresh, except for its retries.
            for partition in earlier.window.partition_ids() {
                let is_retry = self.sources.get(&partition.topic).is_some_and(|source| source.is_retry);
                if earlier.run == run || is_retry {
                    self.remember(&earlier, partition, run);
                }
            }
        }
        self.last_incarnation += 1;
        let settings = &self.context.settings;
        let limits = WindowLimits { body_bytes: settings.prefetch_bytes, parked_bytes: settings.parked_bytes };
        let line = DeliveryLine::new(number, run, self.last_incarnation, ordering, limits, rules);
        self.lines.insert(number, line);
        // All topics are opened again for the new line.
        self.sources.values_mut().for_each(|source| source.version = 0);
    }

    /// Keeps a line's progress in a partition until that partition is opened again.
    fn remember(&mut self, line: &DeliveryLine<Record>, partition: PartitionId, run: u32) {
        let Some(progress) = line.window.progress(partition) else { return };
        let place = ProgressKey { line: line.number, partition };
        let state = progress_format::encode(&progress, self.failing_since).into();
        self.rows.insert(place, ProgressRow { place, run, state });
    }

    /// Opens new partitions, closes those of deleted topics, and updates growths.
    pub(super) fn follow_topics(&mut self) {
        let subscription = Arc::clone(&self.subscription);
        let retry_name = retry_topic(&subscription.name);
        let names = subscription.stored.spec.topics.iter().map(String::as_str).chain([retry_name.as_str()]);
        let topics: Vec<Arc<Topic>> = names.filter_map(|name| self.context.registry.get(name)).collect();
        let gone: Vec<TopicNumber> = self
            .sources
            .keys()
            .copied()
            .filter(|number| !topics.iter().any(|topic| topic.number() == *number))
            .collect();
        for number in gone {
            self.close_topic(number);
        }
        for topic in topics {
            let is_retry = *topic.name == *retry_name;
            let source = self.sources.entry(topic.number());
            let source = source.or_insert_with(|| SourceTopic { topic: Arc::clone(&topic.name), is_retry, version: 0 });
            if source.version != topic.version {
                source.version = topic.version;
                self.targets.remove(&topic.name);
                self.open_topic(&topic, is_retry);
            }
        }
        self.take_redriven();
    }

    fn open_topic(&mut self, topic: &Topic, is_retry: bool) {
        let subscription = Arc::clone(&self.subscription);
        let stored = &subscription.stored;
        let numbers: Vec<u32> = self.lines.keys().copied().collect();
        for number in numbers {
            let replay = stored.replays.iter().find(|replay| replay.run == number);
            if replay.is_some() && is_retry {
                continue;
            }
            let rows = self.rows.values().filter(|row| row.place.line == number);
            if progress_format::are_ahead(rows.map(|row| row.run), self.lines[&number].run) {
                tracing::warn!(subscription = %subscription.name, "the saved progress belongs to a seek that this node has not seen yet");
                continue;
            }
            for partition in topic.all_partitions() {
                let (start, until) = match replay {
                    None => (stored.start_of(&topic.name, topic.number(), partition.index), None),
                    Some(replay) => {
                        let at = |starts| start_in(starts, &topic.name, topic.number(), partition.index);
                        (at(&replay.from), Some(at(&replay.until)))
                    }
                };
                let has = self.lines[&number].window.has(partition);
                if !has && let Some(resume) = self.resume(number, partition, start, is_retry) {
                    let line = self.lines.get_mut(&number).expect("its number was just taken");
                    line.window.open(partition, resume, until, is_retry);
                }
            }
            let line = self.lines.get_mut(&number).expect("its number was just taken");
            line.window.set_growths(topic.number(), &topic.stored.growths);
        }
    }

    /// The saved progress of a partition, or its start. `None` if this version cannot read the saved row.
    fn resume(&mut self, line: u32, partition: PartitionId, start: u64, is_retry: bool) -> Option<PartitionResume> {
        let run = self.lines[&line].run;
        let Some(row) = self.rows.remove(&ProgressKey { line, partition }) else {
            return Some(PartitionResume::at(start));
        };
        if !progress_format::counts(row.run, run, is_retry) {
            return Some(PartitionResume::at(start));
        }
        match progress_format::decode(&row.state) {
            Ok((resume, failing_since)) => {
                self.failing_since = self.failing_since.into_iter().chain(failing_since).min();
                Some(resume)
            }
            Err(error @ MalformedProgress::OtherFormat(_)) => {
                self.failure = Some(format!("the progress of partition {partition} cannot be used: {error}"));
                None
            }
            Err(error @ MalformedProgress::Garbled) => {
                let name = &self.subscription.name;
                let detail = format!("the progress of `{name}` in {partition} is lost; delivery starts again: {error}");
                (self.context.events)(Event::warning("progress_lost", detail).with("subscription", name));
                Some(PartitionResume::at(start))
            }
        }
    }

    /// Stops reading a topic. If it is read again later, delivery continues from here.
    fn close_topic(&mut self, number: TopicNumber) {
        self.sources.remove(&number);
        let mut lines = std::mem::take(&mut self.lines);
        for line in lines.values_mut() {
            for partition in line.window.partition_ids().into_iter().filter(|partition| partition.topic == number) {
                self.remember(line, partition, line.run);
                line.window.close(partition);
            }
        }
        self.lines = lines;
    }

    /// Loads the saved offsets of redriven dead letters.
    fn take_redriven(&mut self) {
        let Some(topic) = self.context.registry.get(&dead_topic(&self.subscription.name)) else { return };
        let place = ProgressKey { line: 0, partition: topic.partition(0) };
        if let Some(row) = self.rows.remove(&place)
            && let Ok((resume, _)) = progress_format::decode(&row.state)
        {
            self.redriven |= resume.unfinished;
        }
    }

    pub(super) fn retry_source(&self) -> Option<TopicNumber> {
        self.sources.iter().find(|(_, source)| source.is_retry).map(|(number, _)| *number)
    }

    /// The target of calls with messages of a topic.
    pub(super) fn target(&mut self, topic: &Arc<str>) -> Arc<CallTarget> {
        if let Some(target) = self.targets.get(topic) {
            return Arc::clone(target);
        }
        let spec = &self.subscription.stored.spec;
        let of_topic = || self.context.registry.get(topic).and_then(|topic| topic.stored.workers.clone());
        let endpoint = spec.endpoint.clone().unwrap_or_else(|| whimbrel_model::subscription::Endpoint {
            url: None,
            timeout_ms: whimbrel_model::subscription::TIMEOUT_DEFAULT.as_millis() as u64,
            connect_timeout_ms: None,
            headers: Vec::new(),
        });
        let target = Arc::new(CallTarget {
            subscription: self.subscription.name.to_string(),
            endpoint,
            envelope: spec.envelope,
            secrets: spec.secrets.clone(),
            workers: spec.workers.clone().or_else(of_topic),
        });
        self.targets.insert(Arc::clone(topic), Arc::clone(&target));
        target
    }

    pub(super) fn filter_of(&self, line: u32) -> MessageFilter {
        let stored = &self.subscription.stored;
        let replay = stored.replays.iter().find(|replay| replay.run == line);
        let has_no_url = stored.spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_none());
        let filter = MessageFilter::new(&stored.spec.filter, replay.and_then(|replay| replay.key.as_deref()));
        filter.with_own_callbacks_only(has_no_url)
    }

    /// Removes completed replays from the catalogue, and deletes their progress.
    pub(super) fn end_replays(&mut self) {
        let over: Vec<u32> = self
            .lines
            .iter()
            .filter(|(number, line)| **number != 0 && line.window.is_over())
            .map(|(number, _)| *number)
            .collect();
        for run in over {
            // Retries and dead letters of the replay are durable by now; otherwise it would not be complete.
            if self.ending_replays.contains(&run) || self.sources.values().any(|source| source.version == 0) {
                continue;
            }
            self.ending_replays.push(run);
            let (subscriptions, progress) =
                (Arc::clone(&self.context.subscriptions), Arc::clone(&self.context.progress));
            let (number, epoch) = (self.subscription.number(), self.epoch);
            self.background.push(Box::pin(async move {
                let ended = subscriptions.end_replay(number, run).await;
                if ended.is_ok()
                    && let Err(error) = progress.end_line(number, epoch, run).await
                {
                    tracing::debug!(%error, run, "cannot delete the progress of a completed replay");
                }
                let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                    runner.ending_replays.retain(|each| *each != run);
                    if let Err(error) = ended {
                        tracing::warn!(%error, run, "cannot remove a completed replay from the catalogue; retrying");
                    }
                });
                after
            }));
        }
    }

    pub(super) fn line_at(&mut self, number: u32, incarnation: u64) -> Option<&mut DeliveryLine<Record>> {
        self.lines.get_mut(&number).filter(|line| line.incarnation == incarnation)
    }

    pub(super) fn rows_are_of(rows: &[ProgressRow]) -> HashMap<u32, Vec<PartitionId>> {
        let mut of: HashMap<u32, Vec<PartitionId>> = HashMap::new();
        for row in rows {
            of.entry(row.place.line).or_default().push(row.place.partition);
        }
        of
    }
}
