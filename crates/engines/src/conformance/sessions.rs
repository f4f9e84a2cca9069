//! The contract of [`Sessions`], as properties that every engine must have.
//!
//! Each property has a store or a prefix of its own.

use whimbrel_model::Timestamp;
use whimbrel_model::people::{GatewayId, OnlineSession, Platform, SessionId, Uid};
use whimbrel_model::ports::{SessionUpdate, Sessions, UserChange, UserSessions};

use super::{Opened, Opens};

#[doc(hidden)]
#[macro_export]
macro_rules! sessions_properties {
    ($receiver:ident $(, $port:ident, $factory:expr)?) => {
        $crate::$receiver! {
            $($port, $factory;)?
            properties: [
                an_unknown_user_is_offline_and_was_never_seen,
                a_started_session_is_returned_as_reported,
                an_ended_session_is_removed_and_its_time_stays,
                sessions_are_returned_in_the_order_of_their_start,
                a_user_goes_offline_with_the_last_session,
                users_are_reported_once_in_the_order_of_first_mention,
                older_news_is_ignored,
                late_news_of_a_start_loses_to_earlier_news_of_the_end,
                the_end_of_an_unknown_session_is_accepted,
                versions_of_many_digits_compare_as_numbers,
                versions_of_users_grow,
                a_picture_replaces_older_sessions,
                a_picture_keeps_newer_sessions,
                a_picture_adds_missed_sessions,
                a_picture_older_than_the_last_is_ignored,
                news_older_than_the_picture_is_ignored,
                a_picture_of_one_incarnation_leaves_others_alone,
                a_void_incarnation_is_offline_at_once_with_earlier_ones,
                news_and_pictures_of_a_void_incarnation_are_refused,
                void_sessions_are_reported_once_when_they_are_swept,
                a_sweep_removes_no_more_than_asked_for,
                a_user_that_reconnects_before_the_sweep_was_never_offline,
                gateways_are_those_that_have_sessions_and_are_not_void,
                keep_alives_set_the_age_of_the_shard,
                shards_do_not_see_each_other,
                thousands_of_sessions_start_and_end_in_one_step,
            ]
        }
    };
}

crate::sessions_properties! { conformance_exports }

/// An engine for the suite.
pub type SessionsFactory = dyn Opens<dyn Sessions>;
pub type OpenSessions = Opened<dyn Sessions>;

const SHARD: u32 = 3;
const GATEWAY: GatewayId = GatewayId { node: 7, incarnation: 10 };
const LATER: GatewayId = GatewayId { node: 7, incarnation: 11 };
const OTHER: GatewayId = GatewayId { node: 700, incarnation: 9 };

mod properties {
    use super::*;

    pub async fn an_unknown_user_is_offline_and_was_never_seen(factory: &SessionsFactory) {
        let open = factory.open().await;
        assert_eq!(of(&open, "u").await, UserSessions::default());
    }

    pub async fn a_started_session_is_returned_as_reported(factory: &SessionsFactory) {
        let open = factory.open().await;
        let session = OnlineSession { device: "手机 1".into(), ..session(GATEWAY, 1, 50) };
        let news = SessionUpdate { session: session.clone(), ..came("u", GATEWAY, 1, 5) };
        assert_eq!(put(&open, vec![news]).await, [("u".to_owned(), false, true)]);
        assert_eq!(of(&open, "u").await, UserSessions { sessions: vec![session], last_seen: None });
        assert_eq!(of(&open, "v").await, UserSessions::default());
    }

    pub async fn an_ended_session_is_removed_and_its_time_stays(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 5)]).await;
        assert_eq!(put(&open, vec![went("u", GATEWAY, 1, 6, 700)]).await, [("u".to_owned(), true, false)]);
        assert_eq!(of(&open, "u").await, UserSessions { sessions: vec![], last_seen: Some(at(700)) });
        put(&open, vec![came("u", GATEWAY, 2, 7), went("u", GATEWAY, 2, 8, 600)]).await;
        assert_eq!(of(&open, "u").await.last_seen, Some(at(700)), "the latest counts");
    }

    pub async fn sessions_are_returned_in_the_order_of_their_start(factory: &SessionsFactory) {
        let open = factory.open().await;
        let mut news = Vec::new();
        for (number, since) in [(1, 30), (2, 10), (3, 20)] {
            news.push(SessionUpdate { session: session(GATEWAY, number, since), ..came("u", GATEWAY, number, 5) });
        }
        put(&open, news).await;
        assert_eq!(numbers(&open, "u").await, [2, 3, 1]);
    }

    pub async fn a_user_goes_offline_with_the_last_session(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 5), came("u", OTHER, 1, 5)]).await;
        assert_eq!(put(&open, vec![went("u", GATEWAY, 1, 6, 1)]).await, [("u".to_owned(), true, true)]);
        assert_eq!(put(&open, vec![went("u", OTHER, 1, 6, 2)]).await, [("u".to_owned(), true, false)]);
    }

    pub async fn users_are_reported_once_in_the_order_of_first_mention(factory: &SessionsFactory) {
        let open = factory.open().await;
        let news = vec![
            came("b", GATEWAY, 1, 5),
            came("a", GATEWAY, 2, 5),
            came("b", GATEWAY, 3, 5),
            went("c", GATEWAY, 4, 5, 1),
            went("a", GATEWAY, 2, 6, 1),
        ];
        let told = [("b", true), ("a", false), ("c", false)].map(|(uid, is)| (uid.to_owned(), false, is));
        assert_eq!(put(&open, news).await, told);
    }

    pub async fn older_news_is_ignored(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 9)]).await;
        put(&open, vec![went("u", GATEWAY, 1, 8, 1)]).await;
        assert_eq!(numbers(&open, "u").await, [1]);
        let older = SessionUpdate { session: session(GATEWAY, 1, 77), ..came("u", GATEWAY, 1, 8) };
        put(&open, vec![older]).await;
        assert_eq!(of(&open, "u").await.sessions, [session(GATEWAY, 1, 0)]);
    }

    pub async fn late_news_of_a_start_loses_to_earlier_news_of_the_end(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 5)]).await;
        put(&open, vec![went("u", GATEWAY, 1, 9, 1)]).await;
        put(&open, vec![came("u", GATEWAY, 1, 5)]).await;
        put(&open, vec![came("u", GATEWAY, 1, 9)]).await;
        assert_eq!(numbers(&open, "u").await, Vec::<u64>::new());
    }

    pub async fn the_end_of_an_unknown_session_is_accepted(factory: &SessionsFactory) {
        let open = factory.open().await;
        assert_eq!(put(&open, vec![went("u", GATEWAY, 1, 9, 5)]).await, [("u".to_owned(), false, false)]);
        put(&open, vec![came("u", GATEWAY, 1, 8)]).await;
        assert_eq!(of(&open, "u").await, UserSessions { sessions: vec![], last_seen: Some(at(5)) });
    }

    pub async fn versions_of_many_digits_compare_as_numbers(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 9)]).await;
        put(&open, vec![went("u", GATEWAY, 1, 10, 1)]).await;
        assert_eq!(numbers(&open, "u").await, Vec::<u64>::new());
        put(&open, vec![came("u", GATEWAY, 2, u64::MAX)]).await;
        put(&open, vec![went("u", GATEWAY, 2, u64::MAX - 1, 1)]).await;
        assert_eq!(numbers(&open, "u").await, [2]);
    }

    pub async fn versions_of_users_grow(factory: &SessionsFactory) {
        let open = factory.open().await;
        let mut last = 0;
        for number in 1..20 {
            let changes = changed(&open, vec![came("u", GATEWAY, number, number)]).await;
            assert!(changes[0].version > last, "{changes:?} after {last}");
            last = changes[0].version;
        }
    }

    pub async fn a_picture_replaces_older_sessions(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("a", GATEWAY, 1, 5), came("b", GATEWAY, 2, 5), came("b", GATEWAY, 3, 5)]).await;
        let mut told = replace(&open, GATEWAY, 8, &[("b", 3)]).await;
        told.sort();
        assert_eq!(told, [("a".to_owned(), true, false), ("b".to_owned(), true, true)]);
        assert_eq!((numbers(&open, "a").await, numbers(&open, "b").await), (vec![], vec![3]));
        assert!(of(&open, "a").await.last_seen.is_some());
    }

    pub async fn a_picture_keeps_newer_sessions(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("a", GATEWAY, 1, 9), came("b", GATEWAY, 2, 3), went("b", GATEWAY, 2, 9, 1)]).await;
        replace(&open, GATEWAY, 8, &[("b", 2)]).await;
        assert_eq!((numbers(&open, "a").await, numbers(&open, "b").await), (vec![1], vec![]));
    }

    pub async fn a_picture_adds_missed_sessions(factory: &SessionsFactory) {
        let open = factory.open().await;
        assert_eq!(replace(&open, GATEWAY, 8, &[("a", 1)]).await, [("a".to_owned(), false, true)]);
        put(&open, vec![went("a", GATEWAY, 1, 9, 1)]).await;
        assert_eq!(numbers(&open, "a").await, Vec::<u64>::new());
    }

    pub async fn a_picture_older_than_the_last_is_ignored(factory: &SessionsFactory) {
        let open = factory.open().await;
        replace(&open, GATEWAY, 8, &[("a", 1)]).await;
        assert_eq!(replace(&open, GATEWAY, 7, &[("b", 2)]).await, []);
        assert_eq!((numbers(&open, "a").await, numbers(&open, "b").await), (vec![1], vec![]));
    }

    pub async fn news_older_than_the_picture_is_ignored(factory: &SessionsFactory) {
        let open = factory.open().await;
        replace(&open, GATEWAY, 8, &[("a", 1)]).await;
        put(&open, vec![came("b", GATEWAY, 2, 7), went("a", GATEWAY, 1, 7, 1)]).await;
        assert_eq!((numbers(&open, "a").await, numbers(&open, "b").await), (vec![1], vec![]));
        put(&open, vec![came("b", GATEWAY, 2, 9)]).await;
        assert_eq!(numbers(&open, "b").await, [2]);
    }

    pub async fn a_picture_of_one_incarnation_leaves_others_alone(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("a", GATEWAY, 1, 1), came("a", LATER, 2, 1), came("a", OTHER, 3, 1)]).await;
        replace(&open, GATEWAY, 8, &[]).await;
        assert_eq!(numbers(&open, "a").await, [2, 3]);
    }

    pub async fn a_void_incarnation_is_offline_at_once_with_earlier_ones(factory: &SessionsFactory) {
        let open = factory.open().await;
        let newest = GatewayId { incarnation: 12, ..GATEWAY };
        let comings = [(GATEWAY, 1), (LATER, 2), (newest, 3), (OTHER, 4)];
        put(&open, comings.map(|(gateway, number)| came("u", gateway, number, 1)).into()).await;
        void(&open, LATER).await;
        assert_eq!(numbers(&open, "u").await, [3, 4]);
        void(&open, GATEWAY).await;
        assert_eq!(numbers(&open, "u").await, [3, 4], "a void incarnation stays void");
    }

    pub async fn news_and_pictures_of_a_void_incarnation_are_refused(factory: &SessionsFactory) {
        let open = factory.open().await;
        void(&open, LATER).await;
        assert_eq!(put(&open, vec![came("u", GATEWAY, 1, 1)]).await, [("u".to_owned(), false, false)]);
        assert_eq!(replace(&open, LATER, 2, &[("u", 2)]).await, []);
        assert_eq!(of(&open, "u").await, UserSessions::default());
        assert_eq!(sweep(&open, 10).await, []);
    }

    pub async fn void_sessions_are_reported_once_when_they_are_swept(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("a", GATEWAY, 1, 1), came("b", GATEWAY, 2, 1), came("b", OTHER, 3, 1)]).await;
        void(&open, GATEWAY).await;
        let mut told = sweep(&open, 10).await;
        told.sort();
        assert_eq!(told, [("a".to_owned(), true, false), ("b".to_owned(), true, true)]);
        assert_eq!(of(&open, "a").await.last_seen, Some(at(900)));
        assert_eq!(sweep(&open, 10).await, []);
    }

    pub async fn a_sweep_removes_no_more_than_asked_for(factory: &SessionsFactory) {
        let open = factory.open().await;
        let users = ["a", "b", "c", "d", "e"];
        let comings =
            users.iter().zip(0..).map(|(uid, number)| came(uid, if number < 2 { GATEWAY } else { LATER }, number, 1));
        put(&open, comings.collect()).await;
        void(&open, LATER).await;
        let mut swept = Vec::new();
        for count in [2, 2, 1, 0] {
            let told = sweep(&open, 2).await;
            assert_eq!(told.len(), count);
            swept.extend(told.into_iter().map(|(uid, ..)| uid));
        }
        swept.sort();
        assert_eq!(swept, users);
    }

    pub async fn a_user_that_reconnects_before_the_sweep_was_never_offline(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 1)]).await;
        void(&open, GATEWAY).await;
        assert_eq!(put(&open, vec![came("u", LATER, 2, 1)]).await, [("u".to_owned(), true, true)]);
        assert_eq!(sweep(&open, 10).await, [("u".to_owned(), true, true)]);
        assert_eq!(numbers(&open, "u").await, [2]);
    }

    pub async fn gateways_are_those_that_have_sessions_and_are_not_void(factory: &SessionsFactory) {
        let open = factory.open().await;
        let gateways = || async { open.gateways(SHARD).await.expect("gateways can be read") };
        assert_eq!(gateways().await, []);
        put(&open, vec![came("a", GATEWAY, 1, 1), came("b", LATER, 2, 1), came("c", OTHER, 3, 1)]).await;
        put(&open, vec![came("d", GATEWAY, 4, 1), came("e", GATEWAY, 5, 1)]).await;
        assert_eq!(gateways().await, [GATEWAY, LATER, OTHER]);
        put(&open, vec![went("c", OTHER, 3, 2, 1)]).await;
        void(&open, GATEWAY).await;
        assert_eq!(gateways().await, [LATER]);
    }

    pub async fn keep_alives_set_the_age_of_the_shard(factory: &SessionsFactory) {
        let open = factory.open().await;
        let heard = || async { open.of(SHARD, vec![]).await.expect("sessions can be read").ago_ms };
        put(&open, vec![came("u", GATEWAY, 1, 1)]).await;
        assert_eq!(heard().await, None, "never");
        open.keep_alive(SHARD, 0).await.expect("the call succeeds");
        let first = heard().await.expect("the writer has vouched for the shard");
        assert!(first < 60_000, "{first} ms ago");
        while heard().await <= Some(first) {
            tokio::task::yield_now().await;
        }
        open.keep_alive(SHARD, 2_000).await.expect("the call succeeds");
        let behind = heard().await.expect("the writer has vouched for the shard");
        assert!((2_000..60_000).contains(&behind), "{behind} ms ago, of which the writer was 2 s behind");
        assert_eq!(open.of(SHARD + 1, vec![]).await.expect("sessions can be read").ago_ms, None);
    }

    pub async fn shards_do_not_see_each_other(factory: &SessionsFactory) {
        let open = factory.open().await;
        put(&open, vec![came("u", GATEWAY, 1, 1)]).await;
        let elsewhere = open.of(SHARD + 1, vec![uid("u")]).await.expect("sessions can be read");
        assert_eq!(elsewhere.found, [UserSessions::default()]);
        open.void(SHARD + 1, GATEWAY).await.expect("the call succeeds");
        assert_eq!(numbers(&open, "u").await, [1]);
    }

    pub async fn thousands_of_sessions_start_and_end_in_one_step(factory: &SessionsFactory) {
        const SESSIONS: u64 = 6_000;
        let open = factory.open().await;
        let name = |number: u64| format!("user-{}", number / 2);
        let told = put(&open, (0..SESSIONS).map(|number| came(&name(number), GATEWAY, number, 1)).collect()).await;
        assert!(told.len() as u64 == SESSIONS / 2 && told.iter().all(|(_, was, is)| !was && *is));
        let uids = (0..SESSIONS / 2).map(|user| uid(&name(user * 2))).collect();
        let found = open.of(SHARD, uids).await.expect("sessions can be read").found;
        assert!(found.iter().all(|user| user.sessions.len() == 2));
        let told = put(&open, (0..SESSIONS).map(|number| went(&name(number), GATEWAY, number, 2, 5)).collect()).await;
        assert!(told.len() as u64 == SESSIONS / 2 && told.iter().all(|(_, was, is)| *was && !is));
    }
}

pub fn uid(text: &str) -> Uid {
    Uid::new(text).expect("it is a good id")
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn session(gateway: GatewayId, number: u64, since: i64) -> OnlineSession {
    let platform = Platform::new("ios").expect("it is a good name");
    OnlineSession { session: SessionId { gateway, number }, platform, device: "".into(), since: at(since) }
}

pub fn came(user: &str, gateway: GatewayId, number: u64, version: u64) -> SessionUpdate {
    SessionUpdate { uid: uid(user), version, session: session(gateway, number, 0), gone_at: None }
}

fn went(user: &str, gateway: GatewayId, number: u64, version: u64, when: i64) -> SessionUpdate {
    SessionUpdate { gone_at: Some(at(when)), ..came(user, gateway, number, version) }
}

/// A user, whether it was online before the step, and whether it is online after it.
type UserTransition = (String, bool, bool);

fn told(changes: Vec<UserChange>) -> Vec<UserTransition> {
    changes.into_iter().map(|change| (change.uid.to_string(), change.was_online, change.is_online)).collect()
}

async fn changed(open: &OpenSessions, news: Vec<SessionUpdate>) -> Vec<UserChange> {
    open.put(SHARD, news).await.expect("the news is accepted")
}

async fn put(open: &OpenSessions, news: Vec<SessionUpdate>) -> Vec<UserTransition> {
    told(changed(open, news).await)
}

async fn replace(
    open: &OpenSessions,
    gateway: GatewayId,
    version: u64,
    picture: &[(&str, u64)],
) -> Vec<UserTransition> {
    let sessions = picture.iter().map(|(user, number)| (uid(user), session(gateway, *number, 0))).collect();
    told(open.replace(SHARD, gateway, version, sessions).await.expect("the picture is accepted"))
}

async fn void(open: &OpenSessions, gateway: GatewayId) {
    open.void(SHARD, gateway).await.expect("the call succeeds");
}

async fn sweep(open: &OpenSessions, limit: usize) -> Vec<UserTransition> {
    told(open.sweep(SHARD, limit, at(900)).await.expect("the sweep succeeds"))
}

async fn of(open: &OpenSessions, user: &str) -> UserSessions {
    let mut heard = open.of(SHARD, vec![uid(user)]).await.expect("sessions can be read");
    heard.found.remove(0)
}

async fn numbers(open: &OpenSessions, user: &str) -> Vec<u64> {
    of(open, user).await.sessions.iter().map(|session| session.session.number).collect()
}
