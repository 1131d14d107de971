//! Changes to an input that are the same in each run.

/// Texts that mean something to one target or another.
const TOKENS: [&[u8]; 24] = [
    b"{}",
    b"[]",
    b"null",
    b"{\"",
    b"\":",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
    b"-1",
    b"0",
    b"9223372036854775807",
    b"1e400",
    b"1.5",
    b"\\u0000",
    b"\\ud800",
    b"\x1b[2J",
    b"\xff",
    b"\0",
    b"../",
    b"\n%%\n",
    b"\"",
    b"\\",
    b"*",
    b"\r\n",
    b"\xc2\x9b",
];

/// Random numbers from a seed: SplitMix64.
pub(super) struct Generator(u64);

impl Generator {
    /// The seed is a name.
    pub(super) fn new(name: &str) -> Self {
        Self(name.bytes().fold(1, |seed, byte| seed.wrapping_mul(31) ^ u64::from(byte)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or_default()
    }
}

/// Changes an input in one to eight places.
pub(super) fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], generator: &mut Generator) {
    for _ in 0..=generator.below(8) {
        let at = generator.below(input.len() + 1);
        let end = at + generator.below((input.len() - at).min(64) + 1);
        match generator.below(8) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << generator.below(8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = generator.next().to_le_bytes()[0];
                }
            }
            2 => drop(input.drain(at..end)),
            3 => {
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            4 => {
                let copy = input[at..end].to_vec();
                let target = generator.below(input.len() + 1);
                input.splice(target..target, copy);
            }
            5 => input.truncate(at),
            6 => {
                let other = &corpus[generator.below(corpus.len())];
                let from = generator.below(other.len() + 1);
                let to = from + generator.below(other.len() - from + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            _ => {
                let token = TOKENS[generator.below(TOKENS.len())];
                input.splice(at..end, token.iter().copied());
            }
        }
    }
}
