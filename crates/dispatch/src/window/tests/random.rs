//! Random runs of a window compared with the naive model.

use bytes::Bytes;
use proptest::prelude::*;
use whimbrel_model::partitioner::partition_of;

use super::model::{MessageProgress, ModelMessage, WindowModel};
use super::scene::RETRIES;
use super::*;

const STEPS: usize = 400;
const KEYS: u64 = 5;
const SIZE_MAX: usize = 40;
/// The most reads and deliveries until a run has delivered everything.
const ROUNDS_MAX: usize = 100_000;

/// A second topic, which never grows and may be closed.
const OTHER: PartitionId = PartitionId { topic: TopicNumber(2), index: 0 };

struct RandomRun {
    random: u64,
    ordering: Ordering,
    limits: WindowLimits,
    window: DeliveryWindow<u64>,
    model: WindowModel,
    reads: Vec<ReadRequest>,
    count: u32,
    growths: Vec<Growth>,
    is_replay: bool,
    has_other: bool,
    /// Whether most deliveries fail, and wait for long.
    is_failing: bool,
    now: i64,
}

impl RandomRun {
    fn new(seed: u64) -> Self {
        let mut run = Self {
            random: seed,
            ordering: Ordering::None,
            limits: WindowLimits { body_bytes: 0, parked_bytes: 0 },
            window: DeliveryWindow::new(Ordering::None, WindowLimits { body_bytes: 0, parked_bytes: 0 }),
            model: WindowModel::default(),
            reads: Vec::new(),
            count: 0,
            growths: Vec::new(),
            is_replay: false,
            has_other: true,
            is_failing: false,
            now: 0,
        };
        run.ordering = [Ordering::Key, Ordering::Key, Ordering::Partition, Ordering::None][run.below(4) as usize];
        run.limits.body_bytes = [60, 200, 100_000][run.below(3) as usize];
        run.limits.parked_bytes = [100, 1_000, 100_000][run.below(3) as usize];
        run.count = 1 + run.below(3) as u32;
        run.is_replay = run.one_in(4);
        run.is_failing = run.one_in(3);
        if run.is_replay {
            (0..60).for_each(|_| run.publish());
            run.maybe_grow_topic();
            (0..60).for_each(|_| run.publish());
            let ids = run.ids();
            for id in ids {
                let end = run.model.next.get(&id).copied().unwrap_or(0);
                let until = run.below(end + 1);
                run.model.until.insert(id, until);
            }
        }
        run.take_over();
        run
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn at(&self) -> Timestamp {
        at(self.now)
    }

    fn ids(&self) -> Vec<PartitionId> {
        let mut ids: Vec<_> = (0..self.count).map(place).collect();
        ids.push(RETRIES);
        ids.extend(self.has_other.then_some(OTHER));
        ids
    }

    fn take_over(&mut self) {
        self.window = DeliveryWindow::new(self.ordering, self.limits);
        for id in self.ids() {
            let until = self.model.until.get(&id).copied();
            self.window.open(id, self.model.resume(id), until, id == RETRIES);
        }
        self.window.set_growths(scene::TOPIC, &self.growths);
        self.reads.clear();
    }

    fn publish(&mut self) {
        let key = (!self.one_in(6)).then(|| self.below(KEYS));
        let id = match self.below(10) {
            0 => RETRIES,
            1 if self.has_other => OTHER,
            _ => match key {
                Some(key) => place(partition_of(format!("k{key}").as_bytes(), self.count)),
                None => place(self.below(u64::from(self.count)) as u32),
            },
        };
        if self.one_in(10) {
            // Unused offsets, such as a transaction leaves in a log.
            let far = if self.one_in(3) { 50_000 } else { 1 };
            *self.model.next.entry(id).or_default() += far;
        }
        let (size, is_wanted) = (1 + self.below(SIZE_MAX as u64) as usize, !self.one_in(8));
        self.model.publish(id, key, size, is_wanted);
    }

    fn maybe_grow_topic(&mut self) {
        if self.growths.len() >= 3 || self.one_in(2) {
            return;
        }
        let ends = (0..self.count).map(|index| self.model.next.get(&place(index)).copied().unwrap_or(0));
        let ends: Vec<u64> = ends.collect();
        let to = self.count + 1 + self.below(2) as u32;
        self.growths.push(Growth { at_ms: 0, from: self.count, to, ends });
        self.count = to;
    }

    /// Grows the topic, and sets the growth in the window before any later message is read.
    fn grow(&mut self) {
        self.maybe_grow_topic();
        self.window.set_growths(scene::TOPIC, &self.growths);
        for id in self.ids() {
            self.window.open(id, self.model.resume(id), None, id == RETRIES);
        }
    }

    fn want_read(&mut self) {
        if let Some(wanted) = self.window.next_read() {
            self.reads.push(wanted);
        }
    }

    fn finish_read(&mut self, may_fail: bool) {
        if self.reads.is_empty() {
            return;
        }
        let index = self.below(self.reads.len() as u64) as usize;
        let wanted = self.reads.swap_remove(index);
        let first = self.model.first.get(&wanted.partition).copied().unwrap_or(0);
        if may_fail && self.one_in(5) {
            return self.window.end_read(wanted);
        }
        if wanted.from < first {
            self.window.end_read(wanted);
            return self.observe_trim(wanted.partition, first);
        }
        let of_it = |message: &&ModelMessage| message.spot.0 == wanted.partition && message.spot.1 >= wanted.from;
        let (mut arrivals, mut bytes) = (Vec::new(), 0);
        for message in self.model.messages.iter().filter(of_it) {
            bytes += message.size;
            if bytes > wanted.max_bytes && !arrivals.is_empty() {
                break;
            }
            let key = message.key.map(|key| Bytes::from(format!("k{key}")));
            let body = message.is_wanted.then_some(message.spot.1);
            arrivals.push(ReadMessage { offset: message.spot.1, key, size: message.size, body });
        }
        let next = arrivals.last().map_or(wanted.from, |last: &ReadMessage<u64>| last.offset + 1);
        if wanted.again {
            let lost = self.window.take_again(wanted, arrivals, next);
            assert!(lost.is_empty(), "only retention loses messages: {lost:?}");
        } else {
            self.window.take_in(wanted.partition, arrivals, next);
        }
    }

    fn observe_trim(&mut self, id: PartitionId, first: u64) {
        let most = 1 + self.below(4) as usize;
        let expected = self.model.lost_below(&self.window, id, first);
        let mut lost = Vec::new();
        loop {
            let some = self.window.gone(id, 0..first, most);
            let count = some.len();
            assert!(count <= most);
            lost.extend(some);
            if count < most {
                break;
            }
        }
        let mut offsets: Vec<u64> = lost.iter().map(|(_, offset)| *offset).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, expected, "lost messages in {id}");
        self.model.skip_unread(&self.window, id, first);
        lost.into_iter().for_each(|(ticket, offset)| {
            self.model.settling.insert(ticket, (id, offset));
        });
    }

    fn deliver(&mut self, fresh: bool) -> bool {
        let now = self.at();
        let Some(delivery) = self.window.next_delivery(now, fresh) else { return false };
        self.model.check_delivery(&delivery, self.ordering, now);
        assert!(fresh || delivery.partition == RETRIES);
        self.model.out.insert(delivery.ticket, (delivery.partition, delivery.offset));
        true
    }

    fn some_ticket(&mut self, settling: bool) -> Option<DeliveryTicket> {
        let of = if settling { &self.model.settling } else { &self.model.out };
        let mut tickets: Vec<DeliveryTicket> = of.keys().copied().collect();
        tickets.sort_unstable();
        let index = self.below(tickets.len() as u64) as usize;
        tickets.get(index).copied()
    }

    fn answer(&mut self) {
        let Some(ticket) = self.some_ticket(false) else { return };
        assert!(self.window.is_in_flight(ticket));
        let spot = self.model.out.remove(&ticket).unwrap();
        let answer = if self.is_failing { 4 + self.below(5) } else { self.below(10) };
        match answer {
            0..5 => {
                assert!(self.window.done(ticket));
                self.model.finish(spot);
            }
            5..8 => {
                let longest = if self.is_failing { 20_000 } else { 3_000 };
                let (until, counts) = (self.now + self.below(longest) as i64, !self.one_in(4));
                assert!(self.window.park(ticket, at(until), counts));
                let known = self.model.message(spot).now;
                self.model.message(spot).now =
                    MessageProgress { attempts: known.attempts + u32::from(counts), until, ..known };
            }
            _ => {
                assert!(self.window.settle(ticket));
                self.model.settling.insert(ticket, spot);
                return;
            }
        }
        self.model.over.push(ticket);
    }

    fn settled(&mut self) {
        let Some(ticket) = self.some_ticket(true) else { return };
        let spot = self.model.settling.remove(&ticket).unwrap();
        if !self.model.message(spot).is_gone && self.one_in(4) {
            let until = self.now + self.below(500) as i64;
            assert!(self.window.park_settling(ticket, at(until)));
            let known = self.model.message(spot).now;
            self.model.message(spot).now = MessageProgress { attempts: known.attempts + 1, until, ..known };
        } else {
            assert!(self.window.done(ticket));
            self.model.finish(spot);
        }
        self.model.over.push(ticket);
    }

    fn answer_late(&mut self) {
        let index = self.below(self.model.over.len() as u64) as usize;
        let Some(ticket) = self.model.over.get(index).copied() else { return };
        // A new owner's window may have issued the same ticket. Only the line's incarnation distinguishes them, which the window does not
        // have.
        if self.model.out.contains_key(&ticket) || self.model.settling.contains_key(&ticket) {
            return;
        }
        let until = self.at();
        assert!(!self.window.is_in_flight(ticket) && !self.window.done(ticket) && !self.window.settle(ticket));
        assert!(!self.window.park(ticket, until, true) && !self.window.park_settling(ticket, until));
    }

    fn trim(&mut self) {
        let ids = self.ids();
        let id = ids[self.below(ids.len() as u64) as usize];
        let first = self.model.first.get(&id).copied().unwrap_or(0);
        let end = self.model.next.get(&id).copied().unwrap_or(0);
        let to = first + self.below((end - first).min(20) + 1);
        self.model.first.insert(id, to);
        let gone = |message: &&mut ModelMessage| message.spot.0 == id && message.spot.1 < to;
        self.model.messages.iter_mut().filter(gone).for_each(|message| message.is_gone = true);
    }

    fn close_other(&mut self) {
        if !self.has_other {
            return;
        }
        self.has_other = false;
        self.window.close(OTHER);
        self.reads.retain(|wanted| wanted.partition != OTHER);
        let WindowModel { out, settling, over, .. } = &mut self.model;
        for tickets in [out, settling] {
            over.extend(tickets.iter().filter(|(_, spot)| spot.0 == OTHER).map(|(ticket, _)| *ticket));
            tickets.retain(|_, spot| spot.0 != OTHER);
        }
    }

    fn step(&mut self) {
        match self.below(100) {
            0..12 if !self.is_replay => self.publish(),
            0..30 => self.want_read(),
            30..48 => self.finish_read(true),
            48..64 => {
                let fresh = !self.one_in(4);
                self.deliver(fresh);
            }
            64..78 => self.answer(),
            78..84 => self.settled(),
            84..86 => self.answer_late(),
            86..91 => self.now += self.below(1_500) as i64,
            91..93 => self.trim(),
            93..96 => self.model.save(&mut self.window),
            96 => {
                self.model.crash();
                self.take_over();
            }
            97 if !self.is_replay => self.grow(),
            98 if self.one_in(5) => self.close_other(),
            _ => {}
        }
    }

    /// Completes the run: from here on all deliveries succeed.
    fn deliver_the_rest(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.check();
            self.want_read();
            self.finish_read(false);
            let delivered = self.deliver(true);
            let (out, settling) = (self.some_ticket(false), self.some_ticket(true));
            for ticket in out.into_iter().chain(settling) {
                let spot = self.model.out.remove(&ticket).or_else(|| self.model.settling.remove(&ticket)).unwrap();
                assert!(self.window.done(ticket));
                self.model.finish(spot);
            }
            if self.model.left(&self.window).is_empty() && self.model.settling.is_empty() {
                break;
            }
            if !delivered {
                self.now = self.now.max(self.window.next_time().map_or(self.now, Timestamp::as_millis));
            }
        }
        let left = self.model.left(&self.window);
        assert!(left.is_empty(), "never delivered: {left:?}");
    }

    fn check(&mut self) {
        self.model.check(&self.window, SIZE_MAX, self.limits);
        let now = self.at();
        let wanted = self.model.check_not_stuck(&mut self.window, self.reads.len(), now);
        self.reads.extend(wanted);
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.deliver_the_rest();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn a_window_behaves_like_its_model(seed in any::<u64>()) {
        RandomRun::new(seed).run();
    }
}
