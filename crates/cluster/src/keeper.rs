//! Joins the cluster, owns the shards that are this node's share, and gives up what is not: for as long as the node runs.
//!
//! When the session is lost, the node gives up all shards at once and joins again. It does not join while its internal key differs from
//! that of another node. A node whose clock differs from the others' stays a member, but not as a center, until the clocks agree.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use whimbrel_model::people::GatewayId;
use whimbrel_model::ports::{Coordination, CoordinationError, Member, Membership, Node};
use whimbrel_model::{Clock, Event, EventSink};

use super::clocks::{AskClock, ClocksApart, judge, read};
use super::families::{CENTER_ROLE, Family, Kind};
use super::key_check::{KeyCheck, OtherKey};
use super::sight::{Sight, View};
use super::tenure::{Ended, Tenure};

/// How long the keeper rests before it tries again what failed.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause before a node whose internal key differs tries to join again.
const OTHER_KEY_PAUSE: Duration = Duration::from_secs(10);
/// How long a node that joined again waits for its own entry to appear in the cluster view.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// What a keeper needs to know.
#[derive(Debug, Clone)]
pub struct KeeperSettings {
    /// This node. It owns shards of the families whose role it has. Its incarnation is set at each joining.
    pub member: Member,
    /// The internal key of this node, which all others must have too.
    pub key_check: KeyCheck,
    /// The node number that it would like.
    pub wanted: Option<u16>,
    /// How far clocks of nodes may be apart.
    pub clocks_apart_max: Duration,
    /// How often the clocks are compared.
    pub clocks_every: Duration,
    /// How long a start tries to join. A node that died and comes back under its name must wait for the end of its earlier
    /// session.
    pub join_within: Duration,
}

impl KeeperSettings {
    pub fn new(member: Member) -> Self {
        Self {
            member,
            key_check: KeyCheck::new(None),
            wanted: None,
            clocks_apart_max: Duration::from_millis(500),
            clocks_every: Duration::from_secs(10),
            join_within: Duration::from_secs(30),
        }
    }
}

/// Why a node could not join at its start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    ClocksApart(#[from] ClocksApart),
    #[error(transparent)]
    OtherKey(#[from] OtherKey),
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
}

/// Where the owner of a shard says that it cannot go on. Cloning shares it.
#[derive(Clone)]
pub struct Resign {
    sender: mpsc::UnboundedSender<(u32, u64)>,
}

impl Resign {
    /// The owner of the shard under that epoch gives it up: `Duties::end` is called, and the shard is taken again by whoever
    /// shall have it. What is not owned under that epoch any more is no matter. Called at most once by each that was begun.
    pub fn resign(&self, shard: u32, epoch: u64) {
        // Without a keeper nothing is owned.
        let _ = self.sender.send((shard, epoch));
    }
}

/// The keeper's end of [`Resign`].
pub struct Resignations {
    pub(super) receiver: mpsc::UnboundedReceiver<(u32, u64)>,
}

/// A way for owners to resign; made first, since duties need one end and the keeper the other.
pub fn resignations() -> (Resign, Resignations) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Resign { sender }, Resignations { receiver })
}

/// What a keeper works with.
pub struct KeeperParts {
    pub coordination: Arc<dyn Coordination>,
    /// Each under a name of its own.
    pub families: Vec<Family>,
    pub clocks: Arc<dyn AskClock>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
}

/// A node that has joined.
pub struct Keeper {
    settings: KeeperSettings,
    parts: KeeperParts,
    views: watch::Sender<Arc<View>>,
    me: watch::Sender<Option<GatewayId>>,
    memberships: watch::Sender<Option<Arc<dyn Membership>>>,
    membership: Arc<dyn Membership>,
    incarnation: u64,
}

impl Keeper {
    /// Joins for the first time. A clock that is apart or another internal key is an error here: somebody is there to see it.
    pub async fn join(settings: KeeperSettings, parts: KeeperParts) -> Result<Self, JoinError> {
        let until = Instant::now() + settings.join_within;
        let kinds: Vec<Kind> = parts.families.iter().map(Family::kind).collect();
        let first = loop {
            match parts.coordination.picture(0).await {
                Ok(picture) => break View::of(picture, &kinds),
                Err(error) if Instant::now() + PAUSE > until => return Err(error.into()),
                Err(_) => sleep(PAUSE).await,
            }
        };
        settings.key_check.compare(&first.nodes)?;
        if is_center(&settings.member) {
            let readings = read(&first, None, &*parts.clocks, &*parts.clock).await;
            judge(None, &readings, settings.clocks_apart_max)?;
        }
        let (mut said, mut incarnation) = (false, 0);
        let membership = loop {
            incarnation = next_incarnation(&*parts.clock, incarnation);
            let member = settings.key_check.signed(Member { incarnation, ..settings.member.clone() });
            match parts.coordination.join(member, settings.wanted).await {
                Ok(membership) => break membership,
                Err(error) if Instant::now() + PAUSE > until => return Err(error.into()),
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(%error, "the node has not joined yet; it tries on");
                    }
                    sleep(PAUSE).await;
                }
            }
        };
        let me = GatewayId { node: membership.node(), incarnation };
        // Nodes that join at the same time do not see each other before that. The later one sees the other now.
        let seen = see_itself(&*parts.coordination, &kinds, me, until).await;
        let first = match seen.and_then(|view| Ok(settings.key_check.compare(&view.nodes).map(|()| view)?)) {
            Ok(view) => view,
            Err(error) => {
                membership.leave().await;
                return Err(error);
            }
        };
        let (views, me) = (watch::Sender::new(Arc::new(first)), watch::Sender::new(Some(me)));
        let memberships = watch::Sender::new(Some(Arc::clone(&membership)));
        Ok(Self { settings, parts, views, me, memberships, membership, incarnation })
    }

    /// The sessions of this node, one after the other; `None` while it has none.
    pub fn memberships(&self) -> watch::Receiver<Option<Arc<dyn Membership>>> {
        self.memberships.subscribe()
    }

    /// What this node sees; kept up while the keeper runs.
    pub fn sight(&self) -> Sight {
        Sight::new(self.views.subscribe(), self.me.subscribe())
    }

    /// The number that the node joined under.
    pub fn node(&self) -> u16 {
        self.membership.node()
    }

    /// Owns this node's share until `shutdown`; then ends everything and leaves.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { mut settings, parts, views, me, memberships, mut membership, mut incarnation } = self;
        let KeeperParts { coordination, families, clocks, clock, events } = parts;
        let kinds: Vec<Kind> = families.iter().map(Family::kind).collect();
        let (duties, mut resignations): (Vec<_>, Vec<_>) =
            families.into_iter().map(|family| (family.duties, family.resignations)).unzip();
        let watching = watch_pictures(&*coordination, &kinds, &views);
        let keeping = async {
            let mut apart: Option<ClocksApart> = None;
            loop {
                settings.wanted = Some(membership.node());
                let tenure = Tenure {
                    membership: &membership,
                    settings: &settings,
                    families: &kinds,
                    duties: &duties,
                    views: views.subscribe(),
                    clocks: &*clocks,
                    clock: &*clock,
                    was_apart: apart.is_some(),
                };
                let ended = tenure.serve(&mut resignations, &shutdown).await;
                if !matches!(ended, Ended::Lost(_)) {
                    membership.leave().await;
                }
                me.send_replace(None);
                memberships.send_replace(None);
                match ended {
                    Ended::Shutdown => return,
                    Ended::Lost(reason) => {
                        let detail =
                            format!("this node lost its session ({reason}); it owns nothing until it has joined again");
                        events(Event::warning("session_lost", detail).with("node", membership.node()));
                    }
                    Ended::Apart(clocks) => {
                        let detail = format!("{clocks}; until then this node owns no shards");
                        events(Event::failure("clocks_apart", detail).with("node", membership.node()));
                        apart = Some(clocks);
                    }
                    Ended::Near => {
                        events(Event::new("clocks_agree", "the clocks agree again: this node owns shards"));
                        apart = None;
                    }
                }
                let member = member_as(&settings.member, apart.is_some());
                let (coordination, kinds, clock) = (&*coordination, &kinds[..], &*clock);
                let rejoin = Rejoin { coordination, settings: &settings, kinds, clock, events: &events };
                (membership, incarnation) = tokio::select! {
                    joined = rejoin.join(member, incarnation) => joined,
                    () = shutdown.cancelled() => return,
                };
                me.send_replace(Some(GatewayId { node: membership.node(), incarnation }));
                memberships.send_replace(Some(Arc::clone(&membership)));
                let detail = format!("this node joined again as node {}", membership.node());
                events(Event::new("joined_again", detail).with("node", membership.node()));
            }
        };
        tokio::select! {
            () = keeping => {}
            () = watching => {}
        }
    }
}

pub(super) fn is_center(member: &Member) -> bool {
    member.roles.iter().any(|role| role == CENTER_ROLE)
}

/// The member as others shall see it: one whose clock is apart is no center.
fn member_as(member: &Member, apart: bool) -> Member {
    let mut member = member.clone();
    if apart {
        member.roles.retain(|role| role != CENTER_ROLE);
    }
    member
}

/// Milliseconds, so that a process that starts anew is above its earlier ones; and above the last one whatever the clock says.
fn next_incarnation(clock: &dyn Clock, last: u64) -> u64 {
    u64::try_from(clock.now().as_millis()).unwrap_or(0).max(last + 1)
}

/// Waits until this node sees its own entry: from then on it sees every node that joined before it.
async fn see_itself(
    coordination: &dyn Coordination,
    kinds: &[Kind],
    me: GatewayId,
    until: Instant,
) -> Result<View, JoinError> {
    let mut seen = 0;
    loop {
        let picture = match timeout_at(until, coordination.picture(seen)).await {
            Ok(picture) => picture?,
            Err(_) => {
                let reason = "the node joined and does not see its own entry".to_owned();
                return Err(CoordinationError::Unavailable(reason).into());
            }
        };
        seen = picture.revision;
        let is_me = |node: &Node| node.number == me.node && node.member.incarnation == me.incarnation;
        if picture.nodes.iter().any(is_me) {
            return Ok(View::of(picture, kinds));
        }
    }
}

/// Joins again after a session has ended.
struct Rejoin<'a> {
    coordination: &'a dyn Coordination,
    settings: &'a KeeperSettings,
    kinds: &'a [Kind],
    clock: &'a dyn Clock,
    events: &'a EventSink,
}

impl Rejoin<'_> {
    /// Tries until the node has joined. While its internal key differs from that of a member, the node stays out.
    async fn join(&self, mut member: Member, last: u64) -> (Arc<dyn Membership>, u64) {
        member.incarnation = last;
        let mut reported: Option<OtherKey> = None;
        loop {
            // Other nodes may have seen an attempt whose answer was lost, so each attempt has a higher incarnation.
            member.incarnation = next_incarnation(self.clock, member.incarnation);
            let pause = match self.try_join(&member).await {
                Ok(membership) => return (membership, member.incarnation),
                Err(JoinError::OtherKey(other)) => {
                    if reported.as_ref() != Some(&other) {
                        let event =
                            Event::failure("internal_key_differs", format!("this node cannot join again: {other}"));
                        (self.events)(event.with("node", other.node).with("name", &other.name));
                    }
                    reported = Some(other);
                    OTHER_KEY_PAUSE
                }
                Err(error) => {
                    tracing::debug!(%error, "the node could not join again yet");
                    PAUSE
                }
            };
            sleep(pause).await;
        }
    }

    async fn try_join(&self, member: &Member) -> Result<Arc<dyn Membership>, JoinError> {
        let (coordination, key_check) = (self.coordination, &self.settings.key_check);
        key_check.compare(&coordination.picture(0).await?.nodes)?;
        let membership = coordination.join(key_check.signed(member.clone()), self.settings.wanted).await?;
        let me = GatewayId { node: membership.node(), incarnation: member.incarnation };
        // Checks again: nodes that join at the same time do not see each other before they have joined.
        let seen = tokio::select! {
            seen = see_itself(coordination, self.kinds, me, Instant::now() + SEEN_WITHIN) => seen,
            reason = membership.lost() => Err(CoordinationError::Lost(reason).into()),
        };
        match seen.and_then(|view| Ok(key_check.compare(&view.nodes)?)) {
            Ok(()) => Ok(membership),
            Err(error) => {
                membership.leave().await;
                Err(error)
            }
        }
    }
}

/// Keeps the view up; never returns.
async fn watch_pictures(coordination: &dyn Coordination, kinds: &[Kind], views: &watch::Sender<Arc<View>>) {
    let mut seen = views.borrow().revision;
    loop {
        match coordination.picture(seen).await {
            Ok(picture) => {
                seen = picture.revision;
                views.send_replace(Arc::new(View::of(picture, kinds)));
            }
            Err(error) => {
                tracing::debug!(%error, "the cluster cannot be seen at the moment");
                sleep(PAUSE).await;
            }
        }
    }
}
