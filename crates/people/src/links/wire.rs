//! The encoding of stream messages, in both directions.
//!
//! Messages of other nodes are validated like any network input. Malformed ones are rejected.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use whimbrel_model::Timestamp;
use whimbrel_model::people::{CloseCode, GatewayId, Platform, Uid, check_device};
use whimbrel_model::ports::{
    Admitted, AnnouncedSession, Arrival, CarrierMessages, Delivery, DeliveryPosition, OutMessage, Resume, ToCarrier,
    ToGateway,
};

use super::limits::{BATCH_BYTES, EPOCH_MAX_BYTES, LINK_VERSION, PARTITIONS_SERVED_MAX, TEXT_MAX_BYTES, TOGETHER_MAX};
use whimbrel_cluster::protocol::{
    LinkAck, LinkAdmitted, LinkAnnounced, LinkArrival, LinkBatch, LinkBody, LinkClosed, LinkDelivery, LinkDown,
    LinkGone, LinkHello, LinkLost, LinkMessage, LinkNews, LinkResume, LinkServed, LinkServing, LinkStored, LinkTold,
    LinkTruncated, LinkUp, LinkWelcome, link_delivery, link_down, link_message, link_news, link_up,
};
use whimbrel_cluster::rpc::Malformed;

/// Reasons of a failed resume, as carriers name them. Unknown ones, from a newer carrier, become [`WHY_OTHER`].
const WHY_WORDS: [&str; 2] = ["other_epoch", "cursor_ahead"];
const WHY_OTHER: &str = "other";

/// The epoch under which a node serves each partition. `None`: not served.
pub(super) type ServedPartitions = Vec<Option<u64>>;

pub(super) fn to_hello(gateway: GatewayId) -> LinkUp {
    let (node, incarnation) = (gateway.node.into(), gateway.incarnation);
    LinkUp { says: Some(link_up::Says::Hello(LinkHello { version: LINK_VERSION, node, incarnation })) }
}

/// The gateway that opened the stream. Only a hello of this version is accepted.
pub(super) fn from_hello(up: Option<LinkUp>) -> Result<GatewayId, Malformed> {
    let Some(link_up::Says::Hello(hello)) = up.and_then(|up| up.says) else {
        return Err(Malformed("the stream does not start with a hello"));
    };
    if hello.version != LINK_VERSION {
        return Err(Malformed("the stream has another version"));
    }
    let node = u16::try_from(hello.node).map_err(|_| Malformed("the node number is too high"))?;
    Ok(GatewayId { node, incarnation: hello.incarnation })
}

pub(super) fn to_welcome() -> LinkDown {
    LinkDown { says: Some(link_down::Says::Welcome(LinkWelcome { version: LINK_VERSION })) }
}

pub(super) fn from_welcome(down: Option<LinkDown>) -> Result<(), Malformed> {
    match down.and_then(|down| down.says) {
        Some(link_down::Says::Welcome(welcome)) if welcome.version == LINK_VERSION => Ok(()),
        Some(link_down::Says::Welcome(_)) => Err(Malformed("the stream has another version")),
        _ => Err(Malformed("the stream does not start with a welcome")),
    }
}

pub(super) fn to_serving(served: &[Option<u64>]) -> LinkDown {
    let served = (0..).zip(served).filter_map(|(partition, epoch)| Some(LinkServed { partition, epoch: (*epoch)? }));
    LinkDown { says: Some(link_down::Says::Serving(LinkServing { partitions: served.collect() })) }
}

pub(super) fn from_serving(serving: LinkServing) -> Result<ServedPartitions, Malformed> {
    let mut served = ServedPartitions::new();
    for LinkServed { partition, epoch } in serving.partitions {
        if partition >= PARTITIONS_SERVED_MAX {
            return Err(Malformed("the partition does not exist"));
        }
        let at = partition as usize;
        served.resize(served.len().max(at + 1), None);
        served[at] = Some(epoch);
    }
    Ok(served)
}

/// Encodes messages to the owner of a partition, in as many stream messages as necessary.
pub(super) fn to_told(partition: u32, messages: Vec<ToCarrier>) -> Vec<LinkUp> {
    let told = |messages: &[ToCarrier]| {
        let messages = messages.iter().map(to_message).collect();
        LinkUp { says: Some(link_up::Says::Told(LinkTold { partition, messages })) }
    };
    messages.chunks(TOGETHER_MAX).map(told).collect()
}

pub(super) fn from_told(up: LinkUp) -> Result<(u32, Vec<ToCarrier>), Malformed> {
    let Some(link_up::Says::Told(told)) = up.says else { return Err(Malformed("unexpected kind of message")) };
    if told.messages.len() > TOGETHER_MAX {
        return Err(Malformed("too many messages in one batch"));
    }
    Ok((told.partition, told.messages.into_iter().map(from_message).collect::<Result<_, _>>()?))
}

/// The user that a message concerns.
pub(super) fn uid_of(message: &ToCarrier) -> &Uid {
    match message {
        ToCarrier::Arrive(arrival) => &arrival.uid,
        ToCarrier::Announce(announced) => &announced.arrival.uid,
        ToCarrier::Ack { uid, .. } | ToCarrier::Gone { uid, .. } => uid,
    }
}

fn to_message(message: &ToCarrier) -> LinkMessage {
    use link_message::Says;
    let says = match message {
        ToCarrier::Arrive(arrival) => Says::Arrive(to_arrival(arrival)),
        ToCarrier::Announce(announced) => Says::Announce(LinkAnnounced {
            arrival: Some(to_arrival(&announced.arrival)),
            epoch: announced.epoch.to_string(),
            sent: announced.sent,
            acked: announced.acked,
        }),
        ToCarrier::Ack { session, uid, upto } => {
            Says::Ack(LinkAck { session: *session, uid: uid.to_string(), upto: *upto })
        }
        ToCarrier::Gone { session, uid } => Says::Gone(LinkGone { session: *session, uid: uid.to_string() }),
    };
    LinkMessage { says: Some(says) }
}

fn from_message(message: LinkMessage) -> Result<ToCarrier, Malformed> {
    use link_message::Says;
    Ok(match message.says.ok_or(Malformed("a message is empty"))? {
        Says::Arrive(arrival) => ToCarrier::Arrive(Box::new(from_arrival(arrival)?)),
        Says::Announce(announced) => ToCarrier::Announce(Box::new(AnnouncedSession {
            arrival: from_arrival(announced.arrival.ok_or(Malformed("an announcement has no arrival"))?)?,
            epoch: from_epoch(&announced.epoch)?.into(),
            sent: announced.sent,
            acked: announced.acked,
        })),
        Says::Ack(ack) => ToCarrier::Ack { session: ack.session, uid: from_uid(&ack.uid)?, upto: ack.upto },
        Says::Gone(gone) => ToCarrier::Gone { session: gone.session, uid: from_uid(&gone.uid)? },
    })
}

fn to_arrival(arrival: &Arrival) -> LinkArrival {
    let resume = arrival.resume.as_ref();
    LinkArrival {
        session: arrival.session,
        uid: arrival.uid.to_string(),
        platform: arrival.platform.to_string(),
        device: arrival.device.to_string(),
        resume: resume.map(|resume| LinkResume { epoch: resume.epoch.to_string(), cursor: resume.cursor }),
        at_ms: arrival.at.as_millis(),
    }
}

fn from_arrival(arrival: LinkArrival) -> Result<Arrival, Malformed> {
    let resume = arrival.resume.map(|resume| -> Result<Resume, Malformed> {
        Ok(Resume { epoch: from_epoch(&resume.epoch)?.into(), cursor: resume.cursor })
    });
    Ok(Arrival {
        session: arrival.session,
        uid: from_uid(&arrival.uid)?,
        platform: from_platform(&arrival.platform)?,
        device: from_device(&arrival.device)?,
        resume: resume.transpose()?,
        at: Timestamp::from_millis(arrival.at_ms),
    })
}

/// Messages for a gateway. Each payload is in a batch once, however many sessions it is for.
pub(super) struct GatewayBatch {
    partition: u32,
    epoch: u64,
    news: Vec<LinkNews>,
    bodies: Vec<LinkBody>,
    /// The index of each payload, by its address. The entry keeps the payload alive, so no address is reused within a batch.
    places: HashMap<*const OutMessage, (u32, Arc<OutMessage>)>,
    bytes: usize,
}

impl GatewayBatch {
    pub fn new(partition: u32, epoch: u64) -> Self {
        Self { partition, epoch, news: Vec::new(), bodies: Vec::new(), places: HashMap::new(), bytes: 0 }
    }

    /// Size of the payloads in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a delivery of that message would add no payload.
    pub fn has_body(&self, message: &Arc<OutMessage>) -> bool {
        self.news.len() < TOGETHER_MAX && self.places.contains_key(&Arc::as_ptr(message))
    }

    /// Adds a message. If the batch is full, starts a new one and returns the old one, which must be sent first.
    pub fn add(&mut self, news: &ToGateway) -> Option<LinkDown> {
        let brings_body = matches!(news, ToGateway::Deliver(delivery) if !self.has_body(&delivery.message));
        let is_full = self.news.len() >= TOGETHER_MAX || (brings_body && self.bytes >= BATCH_BYTES);
        let before = if is_full { self.take() } else { None };
        let (bodies, places, bytes) = (&mut self.bodies, &mut self.places, &mut self.bytes);
        let told = to_news(news, |message| {
            let (place, _) = places.entry(Arc::as_ptr(message)).or_insert_with(|| {
                *bytes += message.payload.len();
                bodies.push(to_body(message));
                (u32::try_from(bodies.len() - 1).unwrap_or(u32::MAX), Arc::clone(message))
            });
            *place
        });
        self.news.push(told);
        before
    }

    /// Takes the batch, if it has any message. It is empty afterwards.
    pub fn take(&mut self) -> Option<LinkDown> {
        if self.news.is_empty() {
            return None;
        }
        let Self { partition, epoch, news, bodies, .. } =
            std::mem::replace(self, Self::new(self.partition, self.epoch));
        Some(LinkDown { says: Some(link_down::Says::Batch(LinkBatch { partition, epoch, bodies, news })) })
    }
}

pub(super) fn from_batch(batch: LinkBatch) -> Result<CarrierMessages, Malformed> {
    if batch.news.len() > TOGETHER_MAX || batch.bodies.len() > TOGETHER_MAX {
        return Err(Malformed("too many messages in one batch"));
    }
    let bodies: Vec<Arc<OutMessage>> = batch.bodies.into_iter().map(from_body).collect::<Result<_, _>>()?;
    let news = batch.news.into_iter().map(|news| from_news(news, &bodies)).collect::<Result<_, _>>()?;
    Ok(CarrierMessages { partition: batch.partition, epoch: batch.epoch, news })
}

fn to_news(news: &ToGateway, place_of: impl FnOnce(&Arc<OutMessage>) -> u32) -> LinkNews {
    use link_news::News;
    let closed = |code: CloseCode, reason: &str| LinkClosed { code: code.number().into(), reason: reason.to_owned() };
    let (session, news) = match news {
        ToGateway::Admitted(admitted) => {
            let Admitted { session, epoch, head, cursor, resumed, why } = &**admitted;
            let (epoch, why) = (epoch.to_string(), why.map(str::to_owned));
            let admitted = LinkAdmitted { epoch, head: *head, cursor: *cursor, resumed: *resumed, why };
            (*session, News::Admitted(admitted))
        }
        ToGateway::Rejected { session, code, reason } => (*session, News::Rejected(closed(*code, reason))),
        ToGateway::Deliver(delivery) => {
            let place = match delivery.place {
                DeliveryPosition::Stored { seq, prev } => link_delivery::Place::Stored(LinkStored { seq, prev }),
                DeliveryPosition::Ephemeral { place } => link_delivery::Place::Ephemeral(place),
            };
            let (body, again) = (place_of(&delivery.message), delivery.again);
            (delivery.session, News::Deliver(LinkDelivery { body, again, place: Some(place) }))
        }
        ToGateway::Truncated { session, from, to, prev } => {
            (*session, News::Truncated(LinkTruncated { from: *from, to: *to, prev: *prev }))
        }
        ToGateway::Lost { session, count } => (*session, News::Lost(LinkLost { count: *count })),
        ToGateway::Kick { session, code, reason } => (*session, News::Kick(closed(*code, reason))),
    };
    LinkNews { session, news: Some(news) }
}

fn from_news(news: LinkNews, bodies: &[Arc<OutMessage>]) -> Result<ToGateway, Malformed> {
    use link_news::News;
    let session = news.session;
    Ok(match news.news.ok_or(Malformed("a message for a session is empty"))? {
        News::Admitted(admitted) => {
            let why = admitted.why.map(|why| WHY_WORDS.into_iter().find(|word| *word == why).unwrap_or(WHY_OTHER));
            let LinkAdmitted { epoch, head, cursor, resumed, .. } = admitted;
            let epoch = from_epoch(&epoch)?.into();
            ToGateway::Admitted(Box::new(Admitted { session, epoch, head, cursor, resumed, why }))
        }
        News::Rejected(closed) => {
            let (code, reason) = from_closed(closed)?;
            ToGateway::Rejected { session, code, reason }
        }
        News::Deliver(delivery) => {
            let place = match delivery.place.ok_or(Malformed("a delivery has no place"))? {
                link_delivery::Place::Stored(LinkStored { seq, prev }) => DeliveryPosition::Stored { seq, prev },
                link_delivery::Place::Ephemeral(place) => DeliveryPosition::Ephemeral { place },
            };
            let message = bodies.get(delivery.body as usize).ok_or(Malformed("a delivery has no payload"))?.clone();
            ToGateway::Deliver(Delivery { session, place, again: delivery.again, message })
        }
        News::Truncated(LinkTruncated { from, to, prev }) => ToGateway::Truncated { session, from, to, prev },
        News::Lost(LinkLost { count }) => ToGateway::Lost { session, count },
        News::Kick(closed) => {
            let (code, reason) = from_closed(closed)?;
            ToGateway::Kick { session, code, reason }
        }
    })
}

fn from_closed(closed: LinkClosed) -> Result<(CloseCode, Arc<str>), Malformed> {
    let code = u16::try_from(closed.code).ok().and_then(CloseCode::from_number);
    Ok((code.ok_or(Malformed("the close code is unknown"))?, from_short(closed.reason)?.into()))
}

fn to_body(message: &OutMessage) -> LinkBody {
    LinkBody {
        id: message.id.to_string(),
        payload: message.payload.clone(),
        content_type: message.content_type.as_ref().map(ToString::to_string),
        sent_at_ms: message.sent_at.as_millis(),
    }
}

fn from_body(body: LinkBody) -> Result<Arc<OutMessage>, Malformed> {
    Ok(Arc::new(OutMessage {
        id: from_short(body.id)?.into(),
        payload: body.payload,
        content_type: body.content_type.map(from_short).transpose()?.map(Into::into),
        sent_at: Timestamp::from_millis(body.sent_at_ms),
        json: OnceLock::new(),
        proto: OnceLock::new(),
    }))
}

fn from_uid(text: &str) -> Result<Uid, Malformed> {
    Uid::new(text).map_err(|_| Malformed("invalid user id"))
}

fn from_platform(text: &str) -> Result<Platform, Malformed> {
    Platform::new(text).map_err(|_| Malformed("invalid platform name"))
}

fn from_device(text: &str) -> Result<Box<str>, Malformed> {
    check_device(text).map_err(|_| Malformed("invalid device name"))?;
    Ok(text.into())
}

fn from_epoch(text: &str) -> Result<&str, Malformed> {
    if text.len() > EPOCH_MAX_BYTES { Err(Malformed("the epoch is too long")) } else { Ok(text) }
}

fn from_short(text: String) -> Result<String, Malformed> {
    if text.len() > TEXT_MAX_BYTES { Err(Malformed("a text is too long")) } else { Ok(text) }
}
