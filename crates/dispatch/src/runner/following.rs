//! Following what people decided: the catalogue's entry of the subscription, and the topics that it reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use whimbrel_model::ports::{CallTarget, DispatchTold, ProgressPlace, ProgressRow};
use whimbrel_model::subscription::{Mode, Ordering, dead_topic, retry_topic, start_in};
use whimbrel_model::{Event, PartitionId, Record, TopicNumber};

use super::Runner;
use crate::breaker::Breaker;
use crate::filter::Filter;
use crate::line::{Line, LineRules};
use crate::pace::Pace;
use crate::saved::{self, MalformedProgress};
use crate::throttle::Throttle;
use crate::window::{Resume, WindowLimits};
use whimbrel_catalogue::topics::Topic;

/// What partitions of a topic are to the subscription.
pub(super) struct Source {
    pub topic: Arc<str>,
    pub is_retry: bool,
    /// The version of the topic's picture that was followed.
    pub version: u64,
}

impl Runner {
    /// Works by the catalogue's entry as it is now.
    pub(super) fn follow(&mut self) {
        let subscription = Arc::clone(&self.subscription);
        let stored = &subscription.stored;
        let spec = &stored.spec;
        self.pace.set_most(spec.concurrency);
        let url = spec.endpoint.as_ref().and_then(|endpoint| endpoint.url.clone());
        let is_resumed = stored.is_active() && !self.was_active;
        self.was_active = stored.is_active();
        // Somebody has looked after the endpoint: what was learned of it, and what waits because of it, begins anew.
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
            // Whoever asked may have gone away.
            let _ = reply.send(Ok(DispatchTold::CaughtUp));
        }
    }

    /// What was learned of one endpoint says nothing about another.
    fn forget_health(&mut self, concurrency: u32) {
        self.breaker = Breaker::new(self.tools.settings.breaker);
        self.pace = Pace::new(concurrency);
        self.held_off = None;
        self.fails_no_more();
    }

    /// A line from where it was left. What is in flight of an earlier one under the number is void, and comes again.
    fn make_line(&mut self, number: u32, run: u32, ordering: Ordering, rules: LineRules) {
        if let Some(earlier) = self.lines.remove(&number) {
            // What it has come to is worth more than what was saved of it. Another run begins anew, but for its retries.
            for partition in earlier.window.partition_ids() {
                let is_retry = self.sources.get(&partition.topic).is_some_and(|source| source.is_retry);
                if earlier.run == run || is_retry {
                    self.remember(&earlier, partition, run);
                }
            }
        }
        self.last_incarnation += 1;
        let settings = &self.tools.settings;
        let limits = WindowLimits { body_bytes: settings.prefetch_bytes, parked_bytes: settings.parked_bytes };
        let line = Line::new(number, run, self.last_incarnation, ordering, limits, rules);
        self.lines.insert(number, line);
        // Its partitions are opened as if they were new.
        self.sources.values_mut().for_each(|source| source.version = 0);
    }

    /// Keeps how far a line has come in a partition, for when that is opened again.
    fn remember(&mut self, line: &Line<Record>, partition: PartitionId, run: u32) {
        let Some(standing) = line.window.standing(partition) else { return };
        let place = ProgressPlace { line: line.number, partition };
        let state = saved::encode(&standing, self.failing_since).into();
        self.rows.insert(place, ProgressRow { place, run, state });
    }

    /// Opens partitions that are new, closes those of topics that are gone, and knows how topics grew.
    pub(super) fn follow_topics(&mut self) {
        let subscription = Arc::clone(&self.subscription);
        let retry_name = retry_topic(&subscription.name);
        let names = subscription.stored.spec.topics.iter().map(String::as_str).chain([retry_name.as_str()]);
        let topics: Vec<Arc<Topic>> = names.filter_map(|name| self.tools.registry.get(name)).collect();
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
            let source = source.or_insert_with(|| Source { topic: Arc::clone(&topic.name), is_retry, version: 0 });
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
            if saved::are_ahead(rows.map(|row| row.run), self.lines[&number].run) {
                tracing::warn!(subscription = %subscription.name, "its progress is of a seek that is not seen here yet");
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

    /// Where a partition was left, or where it begins. `None` where what was saved cannot be used by this version.
    fn resume(&mut self, line: u32, partition: PartitionId, start: u64, is_retry: bool) -> Option<Resume> {
        let run = self.lines[&line].run;
        let Some(row) = self.rows.remove(&ProgressPlace { line, partition }) else { return Some(Resume::at(start)) };
        if !saved::counts(row.run, run, is_retry) {
            return Some(Resume::at(start));
        }
        match saved::decode(&row.state) {
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
                let detail = format!("the progress of `{name}` in {partition} is lost, and it begins again: {error}");
                (self.tools.events)(Event::warning("progress_lost", detail).with("subscription", name));
                Some(Resume::at(start))
            }
        }
    }

    /// The topic is not read any more. It may be read again one day, and then goes on from here.
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

    /// The dead letters that were redriven, from what was saved.
    fn take_redriven(&mut self) {
        let Some(topic) = self.tools.registry.get(&dead_topic(&self.subscription.name)) else { return };
        let place = ProgressPlace { line: 0, partition: topic.partition(0) };
        if let Some(row) = self.rows.remove(&place)
            && let Ok((resume, _)) = saved::decode(&row.state)
        {
            self.redriven |= resume.unfinished;
        }
    }

    /// The number of the retry topic.
    pub(super) fn retry_source(&self) -> Option<TopicNumber> {
        self.sources.iter().find(|(_, source)| source.is_retry).map(|(number, _)| *number)
    }

    /// Where calls with messages of a topic go.
    pub(super) fn target(&mut self, topic: &Arc<str>) -> Arc<CallTarget> {
        if let Some(target) = self.targets.get(topic) {
            return Arc::clone(target);
        }
        let spec = &self.subscription.stored.spec;
        let of_topic = || self.tools.registry.get(topic).and_then(|topic| topic.stored.workers.clone());
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

    /// Which messages a line wants.
    pub(super) fn filter_of(&self, line: u32) -> Filter {
        let stored = &self.subscription.stored;
        let replay = stored.replays.iter().find(|replay| replay.run == line);
        let has_no_url = stored.spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.url.is_none());
        let filter = Filter::new(&stored.spec.filter, replay.and_then(|replay| replay.key.as_deref()));
        filter.of_own_callbacks(has_no_url)
    }

    /// Replays that are over are taken off the catalogue, and their progress is forgotten.
    pub(super) fn end_replays(&mut self) {
        let over: Vec<u32> = self
            .lines
            .iter()
            .filter(|(number, line)| **number != 0 && line.window.is_over())
            .map(|(number, _)| *number)
            .collect();
        for run in over {
            // Retries and dead letters of it are durable by now, or it would not be over.
            if self.ending_replays.contains(&run) || self.sources.values().any(|source| source.version == 0) {
                continue;
            }
            self.ending_replays.push(run);
            let (subscriptions, progress) = (Arc::clone(&self.tools.subscriptions), Arc::clone(&self.tools.progress));
            let (number, epoch) = (self.subscription.number(), self.epoch);
            self.chores.push(Box::pin(async move {
                let ended = subscriptions.end_replay(number, run).await;
                if ended.is_ok() && let Err(error) = progress.end_line(number, epoch, run).await {
                    tracing::debug!(%error, run, "the progress of a replay that is over stays");
                }
                let after: Box<dyn FnOnce(&mut Self) + Send> = Box::new(move |runner| {
                    runner.ending_replays.retain(|each| *each != run);
                    if let Err(error) = ended {
                        tracing::warn!(%error, run, "a replay is over, and the catalogue could not be told; trying again");
                    }
                });
                after
            }));
        }
    }

    pub(super) fn line_at(&mut self, number: u32, incarnation: u64) -> Option<&mut Line<Record>> {
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
