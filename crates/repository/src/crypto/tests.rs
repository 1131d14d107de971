use super::*;

fn crypter(encryption: EncryptionAlgorithm) -> Crypter {
    let master_key = b"01234567890123456789012345678901";
    Crypter::new(HashAlgorithm::Blake2b256_128, encryption, b"secret", master_key).unwrap()
}

/// Vectors that kopia's own tests contain.
#[test]
fn ciphertexts_of_kopia_are_decrypted() {
    let short = (&b"aabbccddeeffgghhiijjkkllmmnnoopp"[..], &b"foo"[..]);
    let long = (&[b'0'; 32][..], &b"quick brown fox jumps over the lazy dog"[..]);
    let aes = EncryptionAlgorithm::Aes256GcmHmacSha256;
    let chacha = EncryptionAlgorithm::Chacha20Poly1305HmacSha256;
    let vectors = [
        (aes, short, "e43ba07f85a6d70c5f1102ca06cf19c597e5f91e527b21f00fb76e8bec3fd1"),
        (chacha, short, "118359f3d4d589d939efbbc3168ae4c77c51bcebce6845fe6ef5d11342faa6"),
        (
            aes,
            long,
            "eaad755a238f1daa4052db2e5ccddd934790b6cca415b3ccfd46ac5746af33d9d30f4400ffa9eb3a64fb1c\
             e21b888c12c043bf6787d4a5c15ad10f21f6a6027ee3afe0",
        ),
        (
            chacha,
            long,
            "836d2ba87892711077adbdbe1452d3b2c590bbfdf6fd3387dc6810220a32ec19de862e1a4f865575e32842\
             4b5f178afac1b7eeff11494f719d119b7ebb924d1d0846a3",
        ),
    ];
    for (algorithm, (iv, plain), sealed) in vectors {
        let sealed = hex::decode(sealed).unwrap();
        let crypter = crypter(algorithm);
        assert_eq!(crypter.decrypt(sealed.clone(), iv).unwrap(), plain);
        let nonce = *sealed.first_chunk().unwrap();
        assert_eq!(crypter.encrypt(plain, iv, nonce).unwrap(), sealed, "same nonce, same bytes");
    }
}

/// A vector that kopia's own tests contain.
#[test]
fn derived_key_is_that_of_kopia() {
    let key = derive_key(b"ABCDEFGHIJKLMNOP", b"0123456789012345", b"the-test-purpose").unwrap();
    assert_eq!(
        hex::encode(&key[..]),
        "828769ee8969bc37f11dbaa32838f8db6c19daa6e3ae5f5eed2da2d94d8faddb"
    );
}

#[test]
fn damaged_data_is_not_decrypted() {
    let crypter = crypter(EncryptionAlgorithm::Aes256GcmHmacSha256);
    let iv = [7; 16];
    let sealed = crypter.encrypt(b"plain", &iv, [1; 12]).unwrap();
    assert_eq!(crypter.decrypt(sealed.clone(), &iv).unwrap(), b"plain");
    for position in 0..sealed.len() {
        let mut damaged = sealed.clone();
        damaged[position] ^= 1;
        assert_eq!(crypter.decrypt(damaged, &iv), Err(Error::Authentication), "byte {position}");
    }
    assert_eq!(crypter.decrypt(sealed.clone(), &[8; 16]), Err(Error::Authentication));
    assert_eq!(crypter.decrypt(sealed[..27].to_vec(), &iv), Err(Error::TooShort(27)));
}

#[test]
fn hash_has_the_length_of_its_algorithm() {
    for (name, length) in
        [("BLAKE2B-256-128", 16), ("BLAKE2B-256", 32), ("HMAC-SHA256", 32), ("HMAC-SHA256-128", 16)]
    {
        let hash = HashAlgorithm::from_name(name).unwrap();
        assert_eq!(hash.name(), name);
        let crypter =
            Crypter::new(hash, EncryptionAlgorithm::Aes256GcmHmacSha256, b"s", b"m").unwrap();
        assert_eq!(crypter.hash(b"").len(), length);
        assert_eq!(crypter.content_id(None, b"").hash(), crypter.hash(b""));
    }
    assert_eq!(HashAlgorithm::from_name("BLAKE3-256"), None);
}

#[test]
fn keys_are_not_shown() {
    let text = format!("{:?}", crypter(EncryptionAlgorithm::Aes256GcmHmacSha256));
    assert!(!text.contains("secret") && !text.contains("0123"), "{text}");
}
