//! Bech32 (BIP 173) without its limit of 90 characters, as age writes keys.

const LETTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// Number of characters of the checksum.
const CHECKSUM_LENGTH: usize = 6;

/// Bytes of a text, which must have this prefix, in lower or upper case.
pub(super) fn decode(text: &str, prefix: &str) -> Option<Vec<u8>> {
    let (lower, upper) = (text.to_ascii_lowercase(), text.to_ascii_uppercase());
    // Mixed case is not allowed.
    if text != lower && text != upper {
        return None;
    }
    let data = lower.strip_prefix(prefix)?.strip_prefix('1')?;
    let value = |letter: u8| {
        let index = LETTERS.iter().position(|&one| one == letter)?;
        u8::try_from(index).ok()
    };
    let values: Vec<u8> = data.bytes().map(value).collect::<Option<_>>()?;
    if values.len() < CHECKSUM_LENGTH || polymod(prefix, &values) != 1 {
        return None;
    }
    to_bytes(&values[..values.len() - CHECKSUM_LENGTH])
}

/// Text of bytes, in lower case.
#[cfg(test)]
pub(super) fn encode(prefix: &str, bytes: &[u8]) -> String {
    let mut values = Vec::new();
    let (mut buffer, mut bits) = (0u32, 0);
    for &byte in bytes {
        buffer = (buffer << 8) | u32::from(byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            values.push(u8::try_from((buffer >> bits) & 31).unwrap());
        }
    }
    if bits > 0 {
        values.push(u8::try_from((buffer << (5 - bits)) & 31).unwrap());
    }
    let padded = [values.as_slice(), &[0; CHECKSUM_LENGTH]].concat();
    let sum = polymod(prefix, &padded) ^ 1;
    values.extend(
        (0..CHECKSUM_LENGTH)
            .map(|index| u8::try_from((sum >> (5 * (CHECKSUM_LENGTH - 1 - index))) & 31).unwrap()),
    );
    let letters = values.iter().map(|&value| char::from(LETTERS[usize::from(value)]));
    format!("{prefix}1{}", letters.collect::<String>())
}

/// Groups of five bits as bytes. The rest must be less than a group, and zero.
fn to_bytes(values: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(values.len() * 5 / 8);
    let (mut buffer, mut bits) = (0u32, 0);
    for &value in values {
        buffer = ((buffer << 5) | u32::from(value)) & 0xfff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from((buffer >> bits) & 0xff).ok()?);
        }
    }
    (bits < 5 && buffer & ((1 << bits) - 1) == 0).then_some(bytes)
}

/// Checksum over prefix and values; 1 if the values end in the right one.
fn polymod(prefix: &str, values: &[u8]) -> u32 {
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let high = prefix.bytes().map(|byte| byte >> 5);
    let low = prefix.bytes().map(|byte| byte & 31);
    let mut sum = 1u32;
    for value in high.chain([0]).chain(low).chain(values.iter().copied()) {
        let top = sum >> 25;
        sum = ((sum & 0x01ff_ffff) << 5) ^ u32::from(value);
        for (bit, generator) in GENERATOR.iter().enumerate() {
            if (top >> bit) & 1 == 1 {
                sum ^= generator;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips_and_changed_text_is_refused() {
        // From BIP 173.
        assert_eq!(decode("A12UEL5L", "a"), Some(Vec::new()));
        assert_eq!(decode("a12uel5l", "a"), Some(Vec::new()));
        for bytes in [&[0u8; 32][..], &[255; 32], b"0123456789abcdef0123456789abcdef"] {
            let text = encode("age", bytes);
            assert_eq!(decode(&text, "age").as_deref(), Some(bytes));
            assert_eq!(decode(&text, "age-secret-key-"), None);
            let mut changed = text.clone().into_bytes();
            let last = changed.len() - 9;
            changed[last] = if changed[last] == b'q' { b'p' } else { b'q' };
            assert_eq!(decode(std::str::from_utf8(&changed).unwrap(), "age"), None);
            assert_eq!(decode(&text.replacen("age", "Age", 1), "age"), None, "mixed cases");
        }
    }
}
