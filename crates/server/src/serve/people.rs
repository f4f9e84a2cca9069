//! What reaches people in this process: the carrier of what is owned here, the gateway, presence, the horn, and the ways between them and
//! other processes. Opened before the process joins the others, ended after it has left.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use whimbrel_catalogue::platforms::Platforms;
use whimbrel_catalogue::topics::Registry;
use whimbrel_cluster::reachability::{ReachParts, Reachability};
use whimbrel_cluster::{
    CARRIER_ROLE, Duties, Family, OWNER_WAIT_DEFAULT, PUSH_FAMILY, Resignations, Sight, resignations,
};
use whimbrel_egress::horn::{Horn, HornCallbacks, HornParts, HornsElsewhere};
use whimbrel_egress::worker::{CallDesks, Worker};
use whimbrel_engines::resolve::Engines;
use whimbrel_model::ports::{Callbacks, Carriers, PortFuture, Presence};
use whimbrel_model::push::PUSH_TOPIC;
use whimbrel_model::{Clock, EventSink, IdMint};
use whimbrel_people::carrier::{Carrier, CarrierPorts};
use whimbrel_people::gateway::Gateway;
use whimbrel_people::gateway::tokens::Tokens;
use whimbrel_people::links::{CarrierLinkParts, CarrierLinks, GatewayLinks, carriers_service};
use whimbrel_people::presence::{
    NoEvents, PresenceEvent, PresenceEvents, PresencePeers, PresenceTopic, Station, StationParts, presence_service,
};

use super::cluster::{AddServices, Cluster, Ground, NobodyHere};
use super::{cannot_start, people_wiring};
use crate::cli::Failure;
use crate::config::{Config, PresenceEngineName};

/// What people's roles work with.
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
    /// Where the process has the role `carrier`.
    carrier: Option<Arc<Carrier>>,
    resignations: Option<Resignations>,
    /// What devices' tokens are checked with, where it has the role `gateway` and until that has begun.
    tokens: Option<Tokens>,
    /// Where it has the role `horn`.
    horn: Option<Arc<Horn>>,
    gateways: Arc<GatewayLinks>,
    station: Arc<Station>,
    presence_events: Arc<LatePresenceTopic>,
    background: Vec<JoinHandle<()>>,
    ends: CancellationToken,
}

/// What is there once the process has joined.
pub struct Reach {
    pub carriers: Arc<dyn Carriers>,
    pub presence: Arc<dyn Presence>,
    pub gateway: Option<Arc<Gateway>>,
    pub reachability: Arc<Reachability>,
}

impl People {
    pub async fn open(parts: &PeopleParts<'_>, ground: &Ground) -> Result<Self, Failure> {
        let PeopleParts { config, engines, registry, clock, events } = parts;
        let platforms = Arc::new(Platforms::open(Arc::clone(&engines.catalogue)).await.map_err(cannot_start)?);
        let partitions = registry.get(PUSH_TOPIC).map_or(config.push.partitions, |topic| topic.partitions());
        let tokens = if config.roles.gateway { Some(people_wiring::tokens(config)?) } else { None };
        let gateways = GatewayLinks::new();
        let (resign, resignations) = resignations();
        let carrier = if config.roles.carrier {
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
        let horn = if config.roles.horn {
            let woken = Arc::clone(&platforms);
            let parts = HornParts {
                devices: Arc::clone(&engines.devices),
                is_woken: Arc::new(move |platform: &_| woken.get(platform).notify),
                clock: Arc::clone(clock),
                events: events.clone(),
            };
            Some(Arc::new(Horn::new(people_wiring::horn_settings(config)?, parts).map_err(cannot_start)?))
        } else {
            None
        };
        let ends = CancellationToken::new();
        let presence_events = Arc::new(LatePresenceTopic::default());
        let parts = StationParts {
            settings: people_wiring::presence_settings(config),
            me: ground.address.clone(),
            writes: config.roles.presence,
            reports: config.roles.gateway,
            sessions: Arc::clone(&engines.sessions),
            sessions_are_shared: config.presence.engine == PresenceEngineName::Redis,
            remote: Arc::new(PresencePeers::new(Arc::clone(&ground.peers))),
            events: if config.presence.events { presence_events.clone() } else { Arc::new(NoEvents) },
            clock: Arc::clone(clock),
        };
        let station = Station::new(parts, ends.clone()).map_err(cannot_start)?;
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
            station,
            presence_events,
            background,
            ends,
        })
    }

    /// The partitions of pushes, as the process's keeper owns them. Once.
    pub fn family(&mut self) -> Option<Family> {
        let duties: Arc<dyn Duties> = match &self.carrier {
            Some(carrier) => carrier.clone(),
            None => Arc::new(NobodyHere),
        };
        let resignations = self.resignations.take()?;
        Some(Family { name: PUSH_FAMILY, role: CARRIER_ROLE, shards: self.partitions, duties, resignations })
    }

    /// Who makes calls in this process, for others to ask.
    pub fn call_desks(&self, worker: Option<Worker>) -> CallDesks {
        CallDesks { worker, horn: self.horn.clone().map(|horn| horn as Arc<dyn Callbacks>) }
    }

    /// Adds what other processes ask of people's roles.
    pub fn services(&self) -> AddServices {
        let (carrier, gateways, station) =
            (self.carrier.clone(), Arc::clone(&self.gateways), Arc::clone(&self.station));
        Box::new(move |mut routes, admission| {
            if let Some(carrier) = carrier {
                routes = routes.add_service(carriers_service(carrier, gateways, admission));
            }
            routes.add_service(presence_service(station, admission))
        })
    }

    /// Once the process has joined the others: devices may come.
    pub fn begin(&mut self, parts: &PeopleParts<'_>, cluster: &Cluster) -> Reach {
        let sight = &cluster.sight;
        let presence_topic = PresenceTopic {
            log: Arc::clone(&parts.engines.log),
            topics: Arc::clone(parts.registry),
            // Where the counter begins tells the ids of two runs apart, as far as the time of their start does.
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
            Gateway::new(settings, tokens, links.clone(), self.station.reporter(), Arc::clone(parts.clock))
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
        let (station, seen) = (Arc::clone(&self.station), sight.clone());
        self.background.push(tokio::spawn(async move { station.run(seen).await }));
        let (roles, presence) = (&parts.config.roles, self.station.reader());
        let reachability = Reachability::new(ReachParts {
            carriers: links.clone(),
            presence: presence.clone(),
            presence_shards: self.station.shards(),
            entrance: gateway.clone().map(|gateway| gateway as _),
            needs_owners: roles.carrier || roles.gateway,
            needs_presence: roles.presence || roles.gateway,
        });
        let reachability = Arc::new(reachability);
        if roles.presence || roles.gateway {
            let (watched, events, ends) = (Arc::clone(&reachability), parts.events.clone(), self.ends.clone());
            self.background.push(tokio::spawn(async move { watched.watch(events, ends).await }));
        }
        Reach { carriers: links, presence, gateway, reachability }
    }

    /// In front of the workers: notices go to the horn, of this process or of another.
    pub fn callbacks(&mut self, cluster: &Cluster, others: Arc<dyn Callbacks>) -> Arc<dyn Callbacks> {
        let elsewhere = self.horn.is_none().then(|| Arc::new(HornsElsewhere::new(Arc::clone(&cluster.peers))));
        if let Some(elsewhere) = &elsewhere {
            let (seeing, sight, ends) = (Arc::clone(elsewhere), cluster.sight.clone(), self.ends.clone());
            self.background.push(tokio::spawn(async move { seeing.run(sight, ends).await }));
        }
        Arc::new(HornCallbacks { horn: self.horn.clone(), elsewhere, others })
    }

    /// After the process has left: every partition was given up behind its last save.
    pub async fn close(self) {
        self.ends.cancel();
        for task in self.background {
            if let Err(error) = task.await {
                tracing::error!(%error, "something that reaching people needs ended badly");
            }
        }
        if let Some(carrier) = self.carrier {
            carrier.close().await;
        }
    }
}

impl Reach {
    /// What devices find at the public port, beside everything else.
    pub fn mount(&self, router: Router) -> Router {
        match &self.gateway {
            Some(gateway) => router.merge(gateway.router()),
            None => router,
        }
    }

    /// Devices are told to go before anything else ends.
    pub async fn go_away(&self, wait: Duration) {
        if let Some(gateway) = &self.gateway {
            gateway.go_away(wait).await;
        }
    }
}

/// Tells the gateway who it is, whenever the process has joined.
async fn follow_identity(sight: Sight, gateway: Arc<Gateway>, ends: CancellationToken) {
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

/// `_presence`, once the process has joined and may mint ids. What is published before is brought again.
#[derive(Default)]
struct LatePresenceTopic {
    topic: OnceLock<PresenceTopic>,
}

impl PresenceEvents for LatePresenceTopic {
    fn publish(&self, events: Vec<PresenceEvent>) -> PortFuture<'_, Result<(), String>> {
        match self.topic.get() {
            Some(topic) => topic.publish(events),
            None => Box::pin(async { Err("the process has not joined yet".to_owned()) }),
        }
    }
}
