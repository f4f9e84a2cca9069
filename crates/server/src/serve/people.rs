//! The roles of this node that reach users: the carrier, the gateway, presence and the horn, with their connections to other nodes. Opened
//! before the node joins the cluster, closed after it has left.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use whimbrel_catalogue::platforms::Platforms;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::reachability::{Reachability, ReachabilityParts};
use whimbrel_cluster::{
    CARRIER_ROLE, ClusterWatch, Family, OWNER_WAIT_DEFAULT, PUSH_FAMILY, Resignations, ShardOwner, resignations,
};
use whimbrel_egress::horn::{Horn, HornCallbacks, HornParts, RemoteHorns};
use whimbrel_egress::worker::{LocalCallbacks, Worker};
use whimbrel_engines::resolve::Engines;
use whimbrel_model::ports::{Callbacks, Carriers, PortFuture, Presence};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{Clock, EventSink, IdMint};
use whimbrel_people::carrier::{Carrier, CarrierPorts};
use whimbrel_people::gateway::Gateway;
use whimbrel_people::gateway::tokens::TokenVerifier;
use whimbrel_people::links::{CarrierLinkParts, CarrierLinks, GatewayLinks, carriers_service, people_queries_service};
use whimbrel_people::presence::{
    NoEvents, PresenceEvent, PresenceEvents, PresenceNode, PresenceNodeParts, PresencePeers, PresenceTopic,
    presence_service,
};

use super::cluster::{AddServices, ClusterNode, NoOwner, NodeIdentity};
use super::{cannot_start, people_wiring};
use crate::cli::CliError;
use crate::config::{Config, PresenceEngineName};

pub struct PeopleParts<'a> {
    pub config: &'a Config,
    pub engines: &'a Engines,
    pub registry: &'a Arc<Registry>,
    pub clock: &'a Arc<dyn Clock>,
    pub events: EventSink,
}

pub struct People {
    pub platforms: Arc<Platforms>,
    partitions: u32,
    /// `None` without the role `carrier`.
    carrier: Option<Arc<Carrier>>,
    resignations: Option<Resignations>,
    /// The keys of device tokens; `None` without the role `gateway`, and after the gateway has started.
    tokens: Option<TokenVerifier>,
    /// `None` without the role `horn`.
    horn: Option<Arc<Horn>>,
    gateways: Arc<GatewayLinks>,
    presence_node: Arc<PresenceNode>,
    presence_events: Arc<LatePresenceTopic>,
    background: Vec<JoinHandle<()>>,
    ends: CancellationToken,
}

/// The state after the node has joined.
pub struct PeopleServices {
    pub carriers: Arc<dyn Carriers>,
    pub presence: Arc<dyn Presence>,
    pub gateway: Option<Arc<Gateway>>,
    pub reachability: Arc<Reachability>,
}

impl People {
    pub async fn open(parts: &PeopleParts<'_>, identity: &NodeIdentity) -> Result<Self, CliError> {
        let PeopleParts { config, engines, registry, clock, events } = parts;
        let platforms = Arc::new(Platforms::open(Arc::clone(&engines.catalogue)).await.map_err(cannot_start)?);
        let partitions = registry.get(PUSH_TOPIC).map_or(config.push.partitions, |topic| topic.partitions());
        let tokens = if config.process.roles.gateway { Some(people_wiring::tokens(config)?) } else { None };
        let gateways = GatewayLinks::new();
        let (resign, resignations) = resignations();
        let carrier = if config.process.roles.carrier {
            let rules = Arc::clone(&platforms);
            let ports = CarrierPorts {
                log: Arc::clone(&engines.log),
                inbox: Arc::clone(&engines.inbox),
                gateways: gateways.clone(),
                rules: Arc::new(move |platform: &_| rules.get(platform)),
                registry: Arc::clone(registry),
                clock: Arc::clone(clock),
                events: events.clone(),
                resign,
            };
            Some(Carrier::start(ports, people_wiring::carrier_settings(config)).map_err(cannot_start)?)
        } else {
            None
        };
        let horn = if config.process.roles.horn {
            let woken = Arc::clone(&platforms);
            let parts = HornParts {
                devices: Arc::clone(&engines.devices),
                is_notifiable: Arc::new(move |platform: &_| woken.get(platform).notify),
                clock: Arc::clone(clock),
                events: events.clone(),
            };
            Some(Arc::new(Horn::new(people_wiring::horn_settings(config)?, parts).map_err(cannot_start)?))
        } else {
            None
        };
        let ends = CancellationToken::new();
        let presence_events = Arc::new(LatePresenceTopic::default());
        let parts = PresenceNodeParts {
            settings: people_wiring::presence_settings(config),
            me: identity.address.clone(),
            writes: config.process.roles.presence,
            reports: config.process.roles.gateway,
            sessions: Arc::clone(&engines.sessions),
            sessions_are_shared: config.presence.engine == PresenceEngineName::Redis,
            remote: Arc::new(PresencePeers::new(Arc::clone(&identity.peers))),
            events: if config.presence.events { presence_events.clone() } else { Arc::new(NoEvents) },
            clock: Arc::clone(clock),
        };
        let presence_node = PresenceNode::new(parts, ends.clone()).map_err(cannot_start)?;
        let (watched, watch_ends) = (Arc::clone(&platforms), ends.clone());
        let background = vec![tokio::spawn(async move { watched.watch(watch_ends).await })];
        Ok(Self {
            platforms,
            partitions,
            carrier,
            resignations: Some(resignations),
            tokens,
            horn,
            gateways,
            presence_node,
            presence_events,
            background,
            ends,
        })
    }

    /// The partitions of pushes as a family of shards. Must be called once.
    pub fn family(&mut self) -> Option<Family> {
        let duties: Arc<dyn ShardOwner> = match &self.carrier {
            Some(carrier) => carrier.clone(),
            None => Arc::new(NoOwner),
        };
        let resignations = self.resignations.take()?;
        Some(Family { name: PUSH_FAMILY, role: CARRIER_ROLE, shards: self.partitions, owner: duties, resignations })
    }

    /// The local workers and horn, for calls from other nodes.
    pub fn call_desks(&self, worker: Option<Worker>) -> LocalCallbacks {
        LocalCallbacks { worker, horn: self.horn.clone().map(|horn| horn as Arc<dyn Callbacks>) }
    }

    /// Adds the internal services of these roles.
    pub fn services(&self) -> AddServices {
        let (carrier, gateways, presence_node) =
            (self.carrier.clone(), Arc::clone(&self.gateways), Arc::clone(&self.presence_node));
        Box::new(move |calls, admission| {
            let calls = calls.and(&presence_service(presence_node, admission));
            match carrier {
                Some(carrier) => Routes::new(calls.and(&people_queries_service(carrier.clone(), admission)))
                    .add_service(carriers_service(carrier, gateways, admission)),
                None => Routes::new(calls),
            }
        })
    }

    /// Starts the roles after the node has joined: devices may connect.
    pub fn begin(&mut self, parts: &PeopleParts<'_>, cluster: &ClusterNode) -> PeopleServices {
        let sight = &cluster.sight;
        let presence_topic = PresenceTopic {
            log: Arc::clone(&parts.engines.log),
            topics: Arc::clone(parts.registry),
            // The start of the counter distinguishes the ids of two runs, unless both started in the same millisecond.
            mint: Arc::new(IdMint::new(cluster.node, parts.clock.now().as_millis() as u32)),
            clock: Arc::clone(parts.clock),
        };
        let _ = self.presence_events.topic.set(presence_topic);
        let links = CarrierLinks::new(CarrierLinkParts {
            partitions: self.partitions,
            sight: sight.clone(),
            desk: self.carrier.clone().map(|carrier| carrier as _),
            peers: Arc::clone(&cluster.peers),
            owner_wait: OWNER_WAIT_DEFAULT,
        });
        let gateway = self.tokens.take().map(|tokens| {
            let settings = people_wiring::gateway_settings(parts.config);
            Gateway::new(settings, tokens, links.clone(), self.presence_node.reporter(), Arc::clone(parts.clock))
        });
        if let Some(gateway) = &gateway {
            let (running, ends) = (Arc::clone(gateway), self.ends.clone());
            self.background.push(tokio::spawn(running.run(ends)));
            self.background.push(tokio::spawn(follow_identity(sight.clone(), Arc::clone(gateway), self.ends.clone())));
        }
        let desk = || gateway.clone().map(|gateway| gateway as _);
        let (gateways, seen, ends) = (Arc::clone(&self.gateways), sight.clone(), self.ends.clone());
        let gateway_desk = desk();
        self.background.push(tokio::spawn(async move { gateways.run(seen, gateway_desk, ends).await }));
        self.background.push(tokio::spawn(Arc::clone(&links).run(desk(), self.ends.clone())));
        let (presence_node, seen) = (Arc::clone(&self.presence_node), sight.clone());
        self.background.push(tokio::spawn(async move { presence_node.run(seen).await }));
        let (roles, presence) = (&parts.config.process.roles, self.presence_node.reader());
        let reachability = Reachability::new(ReachabilityParts {
            carriers: links.clone(),
            presence: presence.clone(),
            presence_shards: self.presence_node.shards(),
            gateway: gateway.clone().map(|gateway| gateway as _),
            needs_owners: roles.carrier || roles.gateway,
            needs_presence: roles.presence || roles.gateway,
        });
        let reachability = Arc::new(reachability);
        if roles.presence || roles.gateway {
            let (watched, events, ends) = (Arc::clone(&reachability), parts.events.clone(), self.ends.clone());
            self.background.push(tokio::spawn(async move { watched.watch(events, ends).await }));
        }
        PeopleServices { carriers: links, presence, gateway, reachability }
    }

    /// Wraps the workers: notifications go to the horn, of this node or of another.
    pub fn callbacks(&mut self, cluster: &ClusterNode, others: Arc<dyn Callbacks>) -> Arc<dyn Callbacks> {
        let remote = self.horn.is_none().then(|| Arc::new(RemoteHorns::new(Arc::clone(&cluster.peers))));
        if let Some(remote) = &remote {
            let (seeing, sight, ends) = (Arc::clone(remote), cluster.sight.clone(), self.ends.clone());
            self.background.push(tokio::spawn(async move { seeing.run(sight, ends).await }));
        }
        Arc::new(HornCallbacks { horn: self.horn.clone(), remote, others })
    }

    /// Closes everything after the node has left. Each partition was released after its last save.
    pub async fn close(self) {
        self.ends.cancel();
        for task in self.background {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the people roles did not end cleanly");
            }
        }
        if let Some(carrier) = self.carrier {
            carrier.close().await;
        }
    }
}

impl PeopleServices {
    /// Adds the paths for devices to the public port.
    pub fn mount(&self, router: Router) -> Router {
        match &self.gateway {
            Some(gateway) => router.merge(gateway.router()),
            None => router,
        }
    }

    /// Disconnects all devices before other parts shut down.
    pub async fn go_away(&self, wait: Duration) {
        if let Some(gateway) = &self.gateway {
            gateway.go_away(wait).await;
        }
    }
}

/// Passes the identity of this node to the gateway each time the node joins.
async fn follow_identity(sight: ClusterWatch, gateway: Arc<Gateway>, ends: CancellationToken) {
    let mut identities = sight.identities();
    loop {
        if let Some(identity) = *identities.borrow_and_update() {
            gateway.reincarnate(identity);
        }
        tokio::select! {
            () = ends.cancelled() => return,
            changed = identities.changed() => if changed.is_err() { return },
        }
    }
}

/// `_presence`, after the node has joined and can create ids. Earlier events fail, and presence retries them.
#[derive(Default)]
struct LatePresenceTopic {
    topic: OnceLock<PresenceTopic>,
}

impl PresenceEvents for LatePresenceTopic {
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        match self.topic.get() {
            Some(topic) => topic.publish(events),
            None => Box::pin(async { Err("the node has not joined yet".to_owned()) }),
        }
    }
}
