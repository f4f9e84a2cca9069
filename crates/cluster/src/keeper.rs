//! Keeps this node in the cluster: joins, takes the shards of this node's share, and gives up all others, while the node runs.
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

use super::clocks::{ClocksApart, PeerClock, check_agreement, read};
use super::cluster_view::{ClusterView, ClusterWatch};
use super::families::{CENTER_ROLE, Family, FamilyKind};
use super::key_check::{InternalKeyMismatch, KeyCheck};
use super::ownership::{SessionEnd, SessionOwnership};

/// The pause before a failed call is retried.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause before a node whose internal key differs tries to join again.
const OTHER_KEY_PAUSE: Duration = Duration::from_secs(10);
/// How long a node that joined again waits for its own entry to appear in the cluster view.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct KeeperSettings {
    /// This node. It owns shards of the families whose role it has. Each join sets a new incarnation.
    pub member: Member,
    /// The check of internal keys, which must match on all nodes.
    pub key_check: KeyCheck,
    pub wanted: Option<u16>,
    /// The largest difference between the clocks of nodes.
    pub clocks_apart_max: Duration,
    pub clocks_every: Duration,
    /// How long a start tries to join. A node that restarts under its name must wait until its earlier session ends.
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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    ClocksApart(#[from] ClocksApart),
    #[error(transparent)]
    KeyMismatch(#[from] InternalKeyMismatch),
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
}

/// Reports that the owner of a shard cannot continue. Clones share the channel.
#[derive(Clone)]
pub struct Resign {
    sender: mpsc::UnboundedSender<(u32, u64)>,
}

impl Resign {
    /// Gives up the shard that is owned under `epoch`: the keeper calls `ShardOwner::end`, and the assigned node takes the shard again. A
    /// call for a shard that is not owned under that epoch has no effect. Each owner calls it at most once.
    pub fn resign(&self, shard: u32, epoch: u64) {
        // Without a keeper no shard is owned.
        let _ = self.sender.send((shard, epoch));
    }
}

/// The keeper's end of [`Resign`].
pub struct Resignations {
    pub(super) receiver: mpsc::UnboundedReceiver<(u32, u64)>,
}

/// Creates both ends of the channel. It is created before the owners and the keeper, which each need one end.
pub fn resignations() -> (Resign, Resignations) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Resign { sender }, Resignations { receiver })
}

pub struct KeeperParts {
    pub coordination: Arc<dyn Coordination>,
    /// Their names are unique.
    pub families: Vec<Family>,
    pub clocks: Arc<dyn PeerClock>,
    pub clock: Arc<dyn Clock>,
    pub events: EventSink,
}

pub struct ClusterKeeper {
    settings: KeeperSettings,
    parts: KeeperParts,
    views: watch::Sender<Arc<ClusterView>>,
    me: watch::Sender<Option<GatewayId>>,
    memberships: watch::Sender<Option<Arc<dyn Membership>>>,
    membership: Arc<dyn Membership>,
    incarnation: u64,
}

impl ClusterKeeper {
    /// Joins for the first time. A deviating clock or another internal key is an error here, so that the start fails visibly.
    pub async fn join(settings: KeeperSettings, parts: KeeperParts) -> Result<Self, JoinError> {
        let until = Instant::now() + settings.join_within;
        let kinds: Vec<FamilyKind> = parts.families.iter().map(Family::kind).collect();
        let first = loop {
            match parts.coordination.snapshot(0).await {
                Ok(picture) => break ClusterView::of(picture, &kinds),
                Err(error) if Instant::now() + PAUSE > until => return Err(error.into()),
                Err(_) => sleep(PAUSE).await,
            }
        };
        settings.key_check.compare(&first.nodes)?;
        if is_center(&settings.member) {
            let readings = read(&first, None, &*parts.clocks, &*parts.clock).await;
            check_agreement(None, &readings, settings.clocks_apart_max)?;
        }
        let (mut is_reported, mut incarnation) = (false, 0);
        let membership = loop {
            incarnation = next_incarnation(&*parts.clock, incarnation);
            let member = settings.key_check.signed(Member { incarnation, ..settings.member.clone() });
            match parts.coordination.join(member, settings.wanted).await {
                Ok(membership) => break membership,
                Err(error) if Instant::now() + PAUSE > until => return Err(error.into()),
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(%error, "the node has not joined the cluster yet; retrying");
                    }
                    sleep(PAUSE).await;
                }
            }
        };
        let me = GatewayId { node: membership.node(), incarnation };
        // Nodes that join at the same time do not see each other before they have joined. The later one sees the other now.
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

    /// The present session of this node; `None` while it has none.
    pub fn memberships(&self) -> watch::Receiver<Option<Arc<dyn Membership>>> {
        self.memberships.subscribe()
    }

    /// The node's view of the cluster, updated while the keeper runs.
    pub fn cluster(&self) -> ClusterWatch {
        ClusterWatch::new(self.views.subscribe(), self.me.subscribe())
    }

    pub fn node(&self) -> u16 {
        self.membership.node()
    }

    /// Owns this node's share of the shards until `shutdown`. Then it ends all shards and leaves.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { mut settings, parts, views, me, memberships, mut membership, mut incarnation } = self;
        let KeeperParts { coordination, families, clocks, clock, events } = parts;
        let kinds: Vec<FamilyKind> = families.iter().map(Family::kind).collect();
        let (owners, mut resignations): (Vec<_>, Vec<_>) =
            families.into_iter().map(|family| (family.owner, family.resignations)).unzip();
        let watching = watch_pictures(&*coordination, &kinds, &views);
        let keeping = async {
            let mut apart: Option<ClocksApart> = None;
            loop {
                settings.wanted = Some(membership.node());
                let ownership = SessionOwnership {
                    membership: &membership,
                    settings: &settings,
                    families: &kinds,
                    owners: &owners,
                    views: views.subscribe(),
                    clocks: &*clocks,
                    clock: &*clock,
                    was_apart: apart.is_some(),
                };
                let ended = ownership.serve(&mut resignations, &shutdown).await;
                if !matches!(ended, SessionEnd::Lost(_)) {
                    membership.leave().await;
                }
                me.send_replace(None);
                memberships.send_replace(None);
                match ended {
                    SessionEnd::Shutdown => return,
                    SessionEnd::Lost(reason) => {
                        let detail = format!(
                            "this node lost its session ({reason}); it owns no shards until it has joined again"
                        );
                        events(Event::warning("session_lost", detail).with("node", membership.node()));
                    }
                    SessionEnd::Apart(clocks) => {
                        let detail = format!("{clocks}; until then this node owns no shards");
                        events(Event::failure("clock_skew_exceeded", detail).with("node", membership.node()));
                        apart = Some(clocks);
                    }
                    SessionEnd::Near => {
                        events(Event::new("clock_skew_recovered", "the clocks agree again: this node may own shards"));
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
                events(Event::new("session_recovered", detail).with("node", membership.node()));
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

/// The member as it is published: a node with a deviating clock is not a center.
fn member_as(member: &Member, apart: bool) -> Member {
    let mut member = member.clone();
    if apart {
        member.roles.retain(|role| role != CENTER_ROLE);
    }
    member
}

/// A higher number for each join: the time in milliseconds, so that a restarted process exceeds its earlier ones, and always above
/// `last`.
fn next_incarnation(clock: &dyn Clock, last: u64) -> u64 {
    u64::try_from(clock.now().as_millis()).unwrap_or(0).max(last + 1)
}

/// Waits until this node sees its own entry. From then on it sees every node that joined before it.
async fn see_itself(
    coordination: &dyn Coordination,
    kinds: &[FamilyKind],
    me: GatewayId,
    until: Instant,
) -> Result<ClusterView, JoinError> {
    let mut seen = 0;
    loop {
        let picture = match timeout_at(until, coordination.snapshot(seen)).await {
            Ok(picture) => picture?,
            Err(_) => {
                let reason = "the node joined but its entry does not appear in the cluster view".to_owned();
                return Err(CoordinationError::Unavailable(reason).into());
            }
        };
        seen = picture.revision;
        let is_me = |node: &Node| node.number == me.node && node.member.incarnation == me.incarnation;
        if picture.nodes.iter().any(is_me) {
            return Ok(ClusterView::of(picture, kinds));
        }
    }
}

struct Rejoin<'a> {
    coordination: &'a dyn Coordination,
    settings: &'a KeeperSettings,
    kinds: &'a [FamilyKind],
    clock: &'a dyn Clock,
    events: &'a EventSink,
}

impl Rejoin<'_> {
    /// Tries until the node has joined. While its internal key differs from that of a member, the node stays out.
    async fn join(&self, mut member: Member, last: u64) -> (Arc<dyn Membership>, u64) {
        member.incarnation = last;
        let mut reported: Option<InternalKeyMismatch> = None;
        loop {
            // Other nodes may have seen an attempt whose answer was lost, so each attempt has a higher incarnation.
            member.incarnation = next_incarnation(self.clock, member.incarnation);
            let pause = match self.try_join(&member).await {
                Ok(membership) => return (membership, member.incarnation),
                Err(JoinError::KeyMismatch(other)) => {
                    if reported.as_ref() != Some(&other) {
                        let event =
                            Event::failure("internal_key_differs", format!("this node cannot join again: {other}"));
                        (self.events)(event.with("node", other.node).with("name", &other.name));
                    }
                    reported = Some(other);
                    OTHER_KEY_PAUSE
                }
                Err(error) => {
                    tracing::debug!(%error, "the node cannot join again yet; retrying");
                    PAUSE
                }
            };
            sleep(pause).await;
        }
    }

    async fn try_join(&self, member: &Member) -> Result<Arc<dyn Membership>, JoinError> {
        let (coordination, key_check) = (self.coordination, &self.settings.key_check);
        key_check.compare(&coordination.snapshot(0).await?.nodes)?;
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

/// Updates the view; never returns.
async fn watch_pictures(
    coordination: &dyn Coordination,
    kinds: &[FamilyKind],
    views: &watch::Sender<Arc<ClusterView>>,
) {
    let mut seen = views.borrow().revision;
    loop {
        match coordination.snapshot(seen).await {
            Ok(picture) => {
                seen = picture.revision;
                views.send_replace(Arc::new(ClusterView::of(picture, kinds)));
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the cluster state; retrying");
                sleep(PAUSE).await;
            }
        }
    }
}
