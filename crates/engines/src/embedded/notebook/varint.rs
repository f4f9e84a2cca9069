//! Numbers in as few bytes as they need: seven bits per byte, the lowest first. Signed numbers are zigzag-encoded, so that small ones stay
//! small.

pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, (number << 1 ^ number >> 63) as u64);
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Removes a number from the front. `None` if there is none.
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(first & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

pub fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let folded = take(bytes)?;
    Some((folded >> 1) as i64 ^ -((folded & 1) as i64))
}

/// A number that fits into fewer bits.
pub fn take_as<N: TryFrom<u64>>(bytes: &mut &[u8]) -> Option<N> {
    take(bytes)?.try_into().ok()
}

pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_as::<usize>(bytes)?;
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written_and_truncated_ones_are_rejected() {
        for number in [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            assert_eq!(take(&mut &bytes[..]), Some(number));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None);
        }
        for number in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            let mut bytes = Vec::new();
            put_signed(&mut bytes, number);
            assert_eq!(take_signed(&mut &bytes[..]), Some(number));
        }
    }

    #[test]
    fn too_large_numbers_are_rejected() {
        assert_eq!(take(&mut &[0xff; 11][..]), None);
        assert_eq!(take_as::<u16>(&mut &[0xff, 0xff, 0x07][..]), None);
        assert_eq!(take_bytes(&mut &[5, 1, 2][..]), None);
    }
}
