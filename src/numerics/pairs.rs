//! Sums of 16 bits, two of them in a word: what [`Wire::I16`](crate::config::Wire) sends.

/// Words that hold so many sums.
pub const fn pair_words(sums: usize) -> usize {
    sums.div_ceil(2)
}

/// Packs sums, each within 16 bits, as `i32` bits, two a word, the first one in the low half; an odd
/// one's other half is 0.
///
/// # Panics
/// If `pairs` does not have [`pair_words`] of the sums.
pub fn pack(sums: &[u32], pairs: &mut [u32]) {
    assert_eq!(pairs.len(), pair_words(sums.len()));
    debug_assert!(sums.iter().all(|&sum| i16::try_from(sum as i32).is_ok()), "sums of 16 bits");
    for (pair, sums) in pairs.iter_mut().zip(sums.chunks(2)) {
        let high = sums.get(1).map_or(0, |&sum| sum << 16);
        *pair = high | u32::from(sums[0] as u16);
    }
}

/// The sums of packed pairs, as `i32` bits.
///
/// # Panics
/// If `pairs` does not have [`pair_words`] of the sums.
pub fn unpack(pairs: &[u32], sums: &mut [u32]) {
    assert_eq!(pairs.len(), pair_words(sums.len()));
    for (sums, &pair) in sums.chunks_mut(2).zip(pairs) {
        sums[0] = i32::from(pair as i16) as u32;
        if let Some(sum) = sums.get_mut(1) {
            *sum = i32::from((pair >> 16) as i16) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_survive_their_packing() {
        let sums = [0, 1, -1, i16::MIN, i16::MAX, -300, 7].map(|sum| i32::from(sum) as u32);
        for count in 0..=sums.len() {
            let mut pairs = vec![u32::MAX; pair_words(count)];
            pack(&sums[..count], &mut pairs);
            let mut back = vec![9; count];
            unpack(&pairs, &mut back);
            assert_eq!(back, sums[..count]);
        }
    }
}
