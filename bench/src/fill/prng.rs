//! Pseudo-random numbers and texts, the same each time.

use std::fmt::Write as _;

/// Letters of base64, of which any four are valid.
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const WORDS: [&str; 24] = [
    "timeout", "retries", "backend", "listen", "region", "level", "endpoint", "cache", "limit",
    "window", "replica", "enabled", "policy", "queue", "token", "schema", "tenant", "quota",
    "batch", "metrics", "trace", "origin", "format", "shard",
];

/// SplitMix64 generator: enough for shapes and sizes, and nothing else.
pub(super) struct Prng(u64);

impl Prng {
    /// Separate generator for each object, so that one can be made without those before it.
    pub(super) fn new(seed: u64, index: usize) -> Self {
        let mut mixed = Self(seed);
        let start = mixed.next_u64() ^ (index as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Self(start)
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Number below `end`, which is not zero.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_u64() % (end as u64)).unwrap_or_default()
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// From 64 bytes to 8 KiB, most of them small: each doubling is as likely as the one before.
    pub(super) fn size(&mut self) -> usize {
        let smallest = 64 << self.below(7);
        smallest + self.below(smallest)
    }

    /// Lines as in a file of settings, which compress as such files do.
    pub(super) fn settings(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 40);
        while text.len() < bytes {
            let (first, second) = (self.pick(&WORDS), self.pick(&WORDS));
            let _ = writeln!(text, "{first}.{second} = {}", self.below(100_000));
        }
        text.truncate(bytes);
        text
    }

    /// Base64 of at least so many characters, which does not compress further.
    pub(super) fn base64(&mut self, characters: usize) -> String {
        let letter = |bits: u64| char::from(BASE64[usize::try_from(bits & 63).unwrap_or_default()]);
        let quads = characters.div_ceil(4);
        let mut text = String::with_capacity(quads * 4);
        for _ in 0..quads {
            let roll = self.next_u64();
            text.extend([0, 6, 12, 18].map(|shift| letter(roll >> shift)));
        }
        text
    }

    /// Lower-case letters and digits, as in the names that Kubernetes makes up.
    pub(super) fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(self.pick(LETTERS))).collect()
    }
}
