//! Follows the catalogue's entry of the subscription, and the topics that it reads.

use std::sync::Arc;

use whimbrel_model::ports::DispatchReply;
use whimbrel_model::subscription::{Mode, Ordering, start_in};
use whimbrel_model::{Event, TopicNumber};

use super::leases::wrong_mode;
use super::{RunnerEffect, SubscriptionRunner};
use crate::delivery_line::LineRules;
use crate::line_set::CURSOR;
use crate::message_filter::MessageFilter;
use crate::progress_format::{self, MalformedProgress};
use crate::saved_progress::SavedStart;
use crate::source_topics::SubscriptionTopics;
use crate::window::{PartitionResume, WindowLimits};
use whimbrel_catalogue::subscriptions::Subscription;
use whimbrel_catalogue::topics::Topic;

impl SubscriptionRunner {
    pub(super) fn catalogue_changed(&mut self, subscription: Arc<Subscription>, topics: SubscriptionTopics) {
        self.sources.set_view(topics);
        if self.subscription.version == subscription.version {
            return self.follow_topics();
        }
        self.subscription = subscription;
        self.follow();
    }

    /// Applies the present entry of the catalogue.
    pub(super) fn follow(&mut self) {
        let subscription = Arc::clone(&self.subscription);
        let stored = &subscription.stored;
        let spec = &stored.spec;
        // An operator changed the URL or resumed the subscription: parked messages are retried now.
        if self.health.follow(stored) {
            self.fails_no_more();
            let now = self.now();
            self.lines.hurry(now);
        }
        let rules = LineRules::of(spec);
        let wanted: Vec<(u32, u32)> = std::iter::once((0, stored.run))
            .chain(stored.replays.iter().map(|replay| (replay.run, replay.run)))
            .collect();
        self.lines.retain(|number| wanted.iter().any(|(each, _)| *each == number));
        for (number, run) in wanted {
            match self.lines.get_mut(number) {
                Some(line) if line.run == run && line.window.ordering() == spec.ordering => line.rules = rules.clone(),
                _ => self.make_line(number, run, spec.ordering, rules.clone()),
            }
        }
        self.follow_topics();
        let lines = &mut self.lines;
        self.leases.forget_lines(|line, incarnation| lines.at(line, incarnation).is_some());
        if spec.mode == Mode::Push {
            for request in self.leases.take_pulls() {
                self.reply(request, Err(wrong_mode()));
            }
            let now = self.now();
            for out in self.leases.take_all() {
                if let Some(line) = self.lines.at(out.line, out.incarnation) {
                    line.not_tried(out.ticket, now);
                }
            }
        }
        for request in self.changes.take_reached(subscription.version) {
            self.reply(request, Ok(DispatchReply::CaughtUp));
        }
    }

    /// Creates a line from its last progress. Deliveries in flight of an earlier line with that number are void and repeated.
    fn make_line(&mut self, number: u32, run: u32, ordering: Ordering, rules: LineRules) {
        if let Some(earlier) = self.lines.remove(number) {
            // Its progress in memory is newer than the saved one. A new run starts afresh, except for its retries.
            for partition in earlier.window.partition_ids() {
                if earlier.run == run || self.sources.is_retry(partition.topic) {
                    self.rows.keep(&earlier, partition, run, self.health.failing_since());
                }
            }
        }
        let settings = &self.settings;
        let limits = WindowLimits { body_bytes: settings.prefetch_bytes, parked_bytes: settings.parked_bytes };
        self.lines.begin(number, run, ordering, limits, rules);
        self.sources.open_again();
    }

    /// Opens new partitions, closes those of deleted topics, and updates growths.
    pub(super) fn follow_topics(&mut self) {
        for number in self.sources.leave() {
            self.close_topic(number);
        }
        for (topic, is_retry) in self.sources.follow() {
            self.open_topic(&topic, is_retry);
        }
        self.take_redriven();
    }

    fn open_topic(&mut self, topic: &Topic, is_retry: bool) {
        let subscription = Arc::clone(&self.subscription);
        let stored = &subscription.stored;
        for number in self.lines.numbers() {
            let replay = stored.replays.iter().find(|replay| replay.run == number);
            if replay.is_some() && is_retry {
                continue;
            }
            let Some(line) = self.lines.get_mut(number) else { continue };
            if self.rows.are_ahead(line) {
                self.effects.push(RunnerEffect::BehindSeek);
                continue;
            }
            for partition in topic.all_partitions().filter(|partition| !line.window.has(*partition)).collect::<Vec<_>>()
            {
                let (start, until) = match replay {
                    None => (stored.start_of(&topic.name, topic.number(), partition.index), None),
                    Some(replay) => {
                        let at = |starts| start_in(starts, &topic.name, topic.number(), partition.index);
                        (at(&replay.from), Some(at(&replay.until)))
                    }
                };
                let resume = match self.rows.take(line, partition, is_retry) {
                    SavedStart::Fresh => PartitionResume::at(start),
                    SavedStart::Resumed(resume, failing_since) => {
                        self.health.fails_since(failing_since);
                        resume
                    }
                    SavedStart::Malformed(error @ MalformedProgress::OtherFormat(_)) => {
                        self.incidents.fail(format!("the progress of partition {partition} cannot be used: {error}"));
                        continue;
                    }
                    SavedStart::Malformed(error @ MalformedProgress::Garbled) => {
                        let name = &subscription.name;
                        let detail =
                            format!("the progress of `{name}` in {partition} is lost; delivery starts again: {error}");
                        let event = Event::warning("progress_lost", detail).with("subscription", name);
                        self.effects.push(RunnerEffect::Publish(event));
                        PartitionResume::at(start)
                    }
                };
                line.window.open(partition, resume, until, is_retry);
            }
            line.window.set_growths(topic.number(), &topic.stored.growths);
        }
    }

    /// Stops reading a topic. If it is read again later, delivery continues from here.
    fn close_topic(&mut self, number: TopicNumber) {
        for line in self.lines.iter_mut() {
            for partition in line.window.partition_ids().into_iter().filter(|partition| partition.topic == number) {
                self.rows.keep(line, partition, line.run, self.health.failing_since());
                line.window.close(partition);
            }
        }
    }

    /// Loads the saved offsets of redriven dead letters.
    fn take_redriven(&mut self) {
        let Some(dead) = self.sources.dead() else { return };
        if let Some(row) = self.rows.take_row(CURSOR, dead)
            && let Ok((resume, _)) = progress_format::decode(&row.state)
        {
            self.redriven.load(resume.unfinished);
        }
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
        for run in self.lines.completed_replays() {
            // Retries and dead letters of the replay are durable by now; otherwise it would not be complete.
            if self.sources.are_unopened() || !self.changes.begin_end(run) {
                continue;
            }
            self.effects.push(RunnerEffect::EndReplay(run));
        }
    }
}
