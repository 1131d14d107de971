//! Recovery files, which travel by other ways than the bucket: encrypted, and their contents.

use bowline::testing;

pub(super) fn run(input: &[u8]) {
    if let Some(count) = testing::decode_recovery_file(input) {
        assert!(count <= input.len());
    }
    if let Some(text) = testing::decrypt_recovery_file(input) {
        panic!("{} bytes were decrypted that nobody has encrypted", text.len());
    }
    let Some((&position, rest)) = input.split_first() else { return };
    let sealed = testing::encrypt_recovery_file(rest);
    assert_eq!(testing::decrypt_recovery_file(&sealed).as_deref(), Some(rest));
    // One damaged bit, or a missing end.
    let at = usize::from(position) * sealed.len() / 256;
    let mut damaged = sealed.clone();
    damaged[at] ^= 1 << (position % 8);
    assert_eq!(testing::decrypt_recovery_file(&damaged), None);
    assert_eq!(testing::decrypt_recovery_file(&sealed[..at]), None);
}
