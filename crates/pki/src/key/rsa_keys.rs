//! RSA keys, which ring uses but does not make.
//!
//! The arithmetic and the key's form are the rsa crate's. Only the search for primes is ours: its own tries candidates
//! against fifteen small primes before each modular power, which takes most of a second for a key of 2048 bits; here
//! one sieve removes nearly all composites first.

use ring::rand::{SecureRandom as _, SystemRandom};
use rsa::BigUint;
use rsa::pkcs8::EncodePrivateKey as _;

use crate::PkiError;

/// Bits of each prime.
const BITS: usize = 1024;
/// The public exponent that everyone uses.
const EXPONENT: u32 = 65537;
/// Candidates are `start + 2 i` for `i` below this; a prime is among that many nearly always.
const WINDOW: usize = 2048;
/// Composites survive a round with a chance below 1/4, and random ones of this size hardly ever survive the first.
const ROUNDS: usize = 16;

/// Makes a key and returns its PKCS#8 form.
pub fn generate() -> Result<Vec<u8>, PkiError> {
    let sieve = small_primes();
    let p = prime(&sieve)?;
    let q = loop {
        let q = prime(&sieve)?;
        // Primes that lie close together are found by walking down from the root of their product.
        let distance = if p > q { &p - &q } else { &q - &p };
        if distance.bits() > BITS - 100 {
            break q;
        }
    };
    let bad = |_| PkiError::Key("a new RSA key could not be put together");
    let key = rsa::RsaPrivateKey::from_p_q(p, q, BigUint::from(EXPONENT)).map_err(bad)?;
    let encoded = key.to_pkcs8_der().map_err(|_| PkiError::Key("a new RSA key could not be encoded"))?;
    Ok(encoded.as_bytes().to_vec())
}

fn small_primes() -> Vec<u32> {
    const LIMIT: usize = 1 << 14;
    let mut composite = vec![false; LIMIT];
    let mut out = Vec::new();
    for n in (3..LIMIT).step_by(2) {
        if !composite[n] {
            out.push(n as u32);
            (n * n..LIMIT).step_by(2 * n).for_each(|multiple| composite[multiple] = true);
        }
    }
    out
}

fn random(bytes: usize) -> Result<Vec<u8>, PkiError> {
    let mut out = vec![0; bytes];
    SystemRandom::new().fill(&mut out).map_err(|_| PkiError::Random)?;
    Ok(out)
}

/// A prime with its two highest bits set, so that the product of two has twice its bits.
fn prime(sieve: &[u32]) -> Result<BigUint, PkiError> {
    loop {
        let mut bytes = random(BITS / 8)?;
        bytes[0] |= 0b1100_0000;
        if let Some(last) = bytes.last_mut() {
            *last |= 1;
        }
        let start = BigUint::from_bytes_be(&bytes);
        let mut composite = vec![false; WINDOW];
        for small in sieve {
            // start + 2 i ≡ 0, and 2 has the inverse (small + 1) / 2.
            let remainder = residue(&start, *small);
            let first = u64::from(small - remainder) * u64::from(small.div_ceil(2)) % u64::from(*small);
            (first as usize..WINDOW).step_by(*small as usize).for_each(|i| composite[i] = true);
        }
        for i in (0..WINDOW).filter(|i| !composite[*i]) {
            let candidate = &start + 2 * i as u32;
            // The exponent must have an inverse modulo p - 1; 65537 is prime, so it is enough not to divide.
            let fits = residue(&candidate, EXPONENT) != 1 && candidate.bits() == BITS;
            if fits && is_prime(&candidate)? {
                return Ok(candidate);
            }
        }
    }
}

fn residue(number: &BigUint, modulus: u32) -> u32 {
    // Digits of the remainder: one or none.
    (number % modulus).to_bytes_le().iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Miller and Rabin's test with random bases.
fn is_prime(candidate: &BigUint) -> Result<bool, PkiError> {
    let one = BigUint::from(1u32);
    let below = candidate - &one;
    let twos = (0..).take_while(|shift| residue(&(&below >> *shift), 2) == 0).count();
    let odd = &below >> twos;
    for _ in 0..ROUNDS {
        // Shorter than the candidate, so neither zero modulo it nor its neighbour.
        let base = BigUint::from_bytes_be(&random(BITS / 8 - 1)?) + 2u32;
        let mut power = base.modpow(&odd, candidate);
        if power == one || power == below {
            continue;
        }
        let reaches = (1..twos).any(|_| {
            power = &power * &power % candidate;
            power == below
        });
        if !reaches {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_told_from_composites() {
        // 2^1279 - 1 is prime, 2^1024 + 643 is the first prime above 2^1024, and a Carmichael number is composite.
        let mersenne = (BigUint::from(1u32) << 1279usize) - 1u32;
        assert!(is_prime(&mersenne).unwrap());
        let first = (BigUint::from(1u32) << 1024usize) + 643u32;
        assert!(is_prime(&first).unwrap());
        for offset in (1u32..643).step_by(2) {
            let number = (BigUint::from(1u32) << 1024usize) + offset;
            assert!(!is_prime(&number).unwrap(), "2^1024 + {offset}");
        }
        assert!(!is_prime(&(&first * &mersenne)).unwrap());
    }

    #[test]
    fn the_sieve_removes_exactly_multiples() {
        let small = small_primes();
        assert_eq!(&small[..5], [3, 5, 7, 11, 13]);
        assert_eq!(small.len(), 1899);
        assert_eq!(residue(&BigUint::from(1_000_003u32), 65537), 1_000_003 % 65537);
    }
}
