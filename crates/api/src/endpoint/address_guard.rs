//! Where callbacks may go: a pure judgement over names and addresses.
//!
//! What is allowed by name goes before what is denied, and what neither list has is allowed. Link-local addresses, those of cloud metadata
//! services, and addresses that are nobody's in particular are denied from the start; an entry of `allow` lifts that. To allow only a few,
//! deny `0.0.0.0/0` and `::/0`.
//!
//! URLs that devices brought are a stranger's: for those the machine itself and every network that is not the public one are denied as
//! well ([`AddressGuard::for_devices`]).
//!
//! A name says little: what counts is the address that is dialled, and that is judged here on every attempt.

use std::net::{IpAddr, Ipv4Addr};

/// What no callback may reach unless it is allowed by name.
const DENIED_BY_DEFAULT: &[&str] = &[
    // "This network", and the unspecified address, which reaches the machine itself.
    "0.0.0.0/8",
    "::/128",
    // Link-local; the metadata services of most clouds are there.
    "169.254.0.0/16",
    "fe80::/10",
    // Metadata services elsewhere: of AWS over IPv6, of Alibaba Cloud, of Oracle Cloud's older one, what Azure tells its machines, of
    // Google by name.
    "fd00:ec2::254/128",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "168.63.129.16/32",
    "metadata.google.internal",
    // Multicast and broadcast.
    "224.0.0.0/4",
    "255.255.255.255/32",
    "ff00::/8",
];

/// What nothing may reach that a device named, beside the above: the machine itself, and what is behind the same router.
const DENIED_TO_DEVICES: &[&str] = &[
    // Loopback.
    "127.0.0.0/8",
    "::1/128",
    // Private networks, and the unique local ones of IPv6 with the site-local ones that were before them.
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fec0::/10",
    // Networks of carriers behind NAT; clouds and overlays use them as their own.
    "100.64.0.0/10",
    // Protocol assignments, networks of test beds, and what nobody was given.
    "192.0.0.0/24",
    "198.18.0.0/15",
    "240.0.0.0/4",
    // IPv4 addresses that are translated or tunnelled in ways which are not unwrapped here.
    "::ffff:0:0:0/96",
    "2001::/32",
];

/// Prefixes whose addresses end with an IPv4 address that a translator reaches: the well-known one, and that for one's own network.
const NAT64_PREFIX: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
const NAT64_OWN_PREFIX: [u16; 3] = [0x64, 0xff9b, 1];
/// The prefix of 6to4; the IPv4 address follows it.
const SIX_TO_FOUR_PREFIX: u16 = 0x2002;

/// Judges names and addresses. Made once from the configuration.
#[derive(Debug, Clone)]
pub struct AddressGuard {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is neither an address, a range such as 10.0.0.0/8, nor a name such as *.example.com")]
pub struct BadRule {
    pub entry: String,
}

/// A callback may not go there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("callbacks may not go to {0}")]
pub struct Forbidden(pub String);

impl Default for AddressGuard {
    fn default() -> Self {
        Self::new(&[], &[]).expect("the rules that stand in the source are well formed")
    }
}

impl AddressGuard {
    /// From the entries of `[callbacks] allow` and `deny`: addresses, ranges, names, `*.` before a name for all below it.
    pub fn new(allow: &[String], deny: &[String]) -> Result<Self, BadRule> {
        let by_default = DENIED_BY_DEFAULT.iter().copied();
        let deny = by_default.chain(deny.iter().map(String::as_str)).map(Rule::parse).collect::<Result<_, _>>()?;
        let allow = allow.iter().map(|entry| Rule::parse(entry)).collect::<Result<_, _>>()?;
        Ok(Self { allow, deny })
    }

    /// For URLs that came with a device's registration: from the entries of `[horn] allow`, and of `[callbacks] deny`. What is allowed to
    /// callbacks is not allowed to devices by that.
    pub fn for_devices(allow: &[String], deny: &[String]) -> Result<Self, BadRule> {
        let mut guard = Self::new(allow, deny)?;
        let private = DENIED_TO_DEVICES.iter().copied().map(Rule::parse).collect::<Result<Vec<_>, _>>()?;
        guard.deny.extend(private);
        Ok(guard)
    }

    /// For URLs of devices where nobody configured anything.
    pub fn default_for_devices() -> Self {
        Self::for_devices(&[], &[]).expect("the rules that stand in the source are well formed")
    }

    /// Judges the host of a URL before anybody looks its address up: an address as such, a name by its name only.
    pub fn check_host(&self, host: &str) -> Result<(), Forbidden> {
        let name = normal_name(host);
        match name.parse::<IpAddr>() {
            Ok(address) => self.judge(None, Some(address)),
            Err(_) => self.judge(Some(&name), None),
        }
    }

    /// Judges an address that is about to be dialled for a host.
    pub fn check_dialled(&self, host: &str, address: IpAddr) -> Result<(), Forbidden> {
        self.judge(Some(&normal_name(host)), Some(address))
    }

    fn judge(&self, name: Option<&str>, address: Option<IpAddr>) -> Result<(), Forbidden> {
        let address = address.map(unwrapped);
        let matches = |rule: &Rule| {
            name.is_some_and(|name| rule.matches_name(name))
                || address.is_some_and(|address| rule.matches_address(address))
        };
        if self.allow.iter().any(matches) || !self.deny.iter().any(matches) {
            return Ok(());
        }
        Err(Forbidden(match (name, address) {
            (Some(name), Some(address)) if name.parse() != Ok(address) => format!("{address}, the address of {name}"),
            (_, Some(address)) => address.to_string(),
            (name, None) => name.unwrap_or_default().to_owned(),
        }))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Range4 {
        network: u32,
        mask: u32,
    },
    Range6 {
        network: u128,
        mask: u128,
    },
    Name(String),
    /// Everything below a name, and not the name itself.
    Below(String),
}

impl Rule {
    fn parse(entry: &str) -> Result<Self, BadRule> {
        let bad = || BadRule { entry: entry.to_owned() };
        let text = entry.trim();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => {
                // `parse` would take a plus sign.
                let bits = Some(bits).filter(|bits| bits.bytes().all(|b| b.is_ascii_digit()));
                (address, Some(bits.and_then(|bits| bits.parse::<u32>().ok()).ok_or_else(bad)?))
            }
            None => (text, None),
        };
        match (address.parse::<IpAddr>(), bits) {
            (Ok(IpAddr::V4(address)), bits) => {
                let bits = Some(bits.unwrap_or(32)).filter(|bits| *bits <= 32).ok_or_else(bad)?;
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                Ok(Self::Range4 { network: u32::from(address) & mask, mask })
            }
            (Ok(IpAddr::V6(address)), bits) => {
                let bits = Some(bits.unwrap_or(128)).filter(|bits| *bits <= 128).ok_or_else(bad)?;
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                Ok(Self::Range6 { network: u128::from(address) & mask, mask })
            }
            (Err(_), Some(_)) => Err(bad()),
            (Err(_), None) => Self::parse_name(text).ok_or_else(bad),
        }
    }

    fn parse_name(text: &str) -> Option<Self> {
        let (below, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = normal_name(name);
        let is_label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        // A name of digits and dots is an address that was mistyped.
        let is_name = name.split('.').all(is_label) && !name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        is_name.then_some(if below { Self::Below(name) } else { Self::Name(name) })
    }

    fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Name(rule) => rule == name,
            Self::Below(rule) => name.strip_suffix(rule.as_str()).is_some_and(|above| above.ends_with('.')),
            Self::Range4 { .. } | Self::Range6 { .. } => false,
        }
    }

    fn matches_address(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::Range4 { network, mask }, IpAddr::V4(address)) => u32::from(address) & mask == *network,
            (Self::Range6 { network, mask }, IpAddr::V6(address)) => u128::from(address) & mask == *network,
            _ => false,
        }
    }
}

/// In lower case, without the brackets of an address or the dot at the end of a full name.
fn normal_name(host: &str) -> String {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// The IPv4 address within an IPv6 one that leads to it.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let (bits, segments) = (u128::from(six), six.segments());
    let last_four = Ipv4Addr::from(bits as u32);
    let is_translated = segments[..6] == NAT64_PREFIX || segments[..3] == NAT64_OWN_PREFIX;
    // Compatible addresses have nothing in front; the smallest of them are IPv6's own, such as ::1.
    let is_compatible = bits >> 32 == 0 && bits > u128::from(u16::MAX);
    if six.to_ipv4_mapped().is_some() || is_translated || is_compatible {
        IpAddr::V4(last_four)
    } else if segments[0] == SIX_TO_FOUR_PREFIX {
        IpAddr::V4(Ipv4Addr::from((bits >> 80) as u32))
    } else {
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guard(allow: &[&str], deny: &[&str]) -> AddressGuard {
        let owned = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        AddressGuard::new(&owned(allow), &owned(deny)).unwrap()
    }

    fn dialled(guard: &AddressGuard, host: &str, address: &str) -> bool {
        guard.check_dialled(host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn by_default_everything_is_allowed_but_what_no_subscriber_is_at() {
        let guard = AddressGuard::default();
        for address in ["127.0.0.1", "10.1.2.3", "192.168.1.1", "8.8.8.8", "::1", "2001:db8::1", "fd00::1"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "ff02::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
        assert!(guard.check_host("metadata.google.internal").is_err());
        assert!(guard.check_host("Metadata.Google.Internal.").is_err());
    }

    #[test]
    fn an_ipv4_address_in_an_ipv6_dress_is_still_that_address() {
        let guard = AddressGuard::default();
        for address in [
            "::ffff:169.254.169.254",
            "[::ffff:a9fe:a9fe]",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
        for address in ["::1", "2002:7f00:1::", "64:ff9b:2::169.254.169.254"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
        assert!(guard.check_host("::ffff:127.0.0.1").is_ok());
    }

    #[test]
    fn a_harmless_name_that_leads_to_a_denied_address_is_refused_when_it_is_dialled() {
        let guard = AddressGuard::default();
        assert!(guard.check_host("hooks.example.com").is_ok());
        let refusal = guard.check_dialled("hooks.example.com", "169.254.169.254".parse().unwrap()).unwrap_err();
        assert_eq!(refusal.to_string(), "callbacks may not go to 169.254.169.254, the address of hooks.example.com");
        assert!(dialled(&guard, "hooks.example.com", "203.0.113.9"));
    }

    #[test]
    fn what_a_device_named_reaches_the_public_network_only() {
        let guard = AddressGuard::default_for_devices();
        for address in [
            "127.0.0.1",
            "127.255.255.254",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "240.0.0.1",
            "198.18.0.1",
            "192.0.0.8",
            "::",
            "::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "[::ffff:a01:203]",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:c0a8:101::1",
            "2001:0:1::1",
        ] {
            assert!(guard.check_host(address).is_err(), "{address}");
            let bare = address.trim_matches(['[', ']']);
            assert!(!dialled(&guard, "push.example.com", bare), "{address} by a name");
        }
        for address in ["8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1", "2a00::1"] {
            assert!(guard.check_host(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn only_what_is_allowed_to_devices_by_name_lifts_what_is_denied_to_them() {
        let own = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        let guard = AddressGuard::for_devices(&own(&["10.1.0.0/16", "*.lan"]), &own(&["203.0.113.0/24"])).unwrap();
        assert!(guard.check_host("10.1.2.3").is_ok());
        assert!(guard.check_host("::ffff:10.1.2.3").is_ok());
        assert!(dialled(&guard, "push.lan", "192.168.0.1"));
        for address in ["10.2.0.1", "127.0.0.1", "203.0.113.9"] {
            assert!(guard.check_host(address).is_err(), "{address}");
        }
    }

    #[test]
    fn what_is_allowed_goes_before_what_is_denied() {
        let guard = guard(&["10.1.0.0/16", "*.corp.example", "169.254.7.7"], &["0.0.0.0/0", "::/0"]);
        assert!(dialled(&guard, "a", "10.1.255.1"));
        assert!(!dialled(&guard, "a", "10.2.0.1"));
        assert!(!dialled(&guard, "a", "2001:db8::1"));
        assert!(dialled(&guard, "hook.corp.example", "192.168.0.1"));
        assert!(dialled(&guard, "deep.hook.CORP.example", "192.168.0.1"));
        assert!(!dialled(&guard, "corp.example", "192.168.0.1"), "the name itself is not below itself");
        assert!(!dialled(&guard, "evilcorp.example", "192.168.0.1"));
        assert!(dialled(&guard, "a", "169.254.7.7"), "it is allowed by name");
    }

    #[test]
    fn names_are_denied_whatever_they_lead_to() {
        let guard = guard(&[], &["internal", "*.internal"]);
        assert!(guard.check_host("internal").is_err());
        assert!(guard.check_host("db.internal").is_err());
        assert!(!dialled(&guard, "db.internal", "8.8.8.8"));
        assert!(guard.check_host("internal.example.com").is_ok());
    }

    #[test]
    fn what_is_no_rule_is_told() {
        for entry in
            ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/+8", "a b", "*", "*.", "-/3", "10.0.0.256", "x/8"]
        {
            let error = AddressGuard::new(&[entry.to_owned()], &[]).unwrap_err();
            assert_eq!(error.entry, entry);
        }
    }

    proptest! {
        #[test]
        fn a_range_holds_exactly_the_addresses_with_its_first_bits(network: u32, bits in 0u32..=32, address: u32) {
            let rule = Rule::parse(&format!("{}/{bits}", Ipv4Addr::from(network))).unwrap();
            let same = (0..bits).all(|bit| (network ^ address) >> (31 - bit) & 1 == 0);
            prop_assert_eq!(rule.matches_address(IpAddr::V4(address.into())), same);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = Rule::parse(&text);
            let _ = AddressGuard::default().check_host(&text);
        }
    }
}
