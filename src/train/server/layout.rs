//! What of each bucket goes to which server.

use std::ops::Range;

use crate::config::Wire;
use crate::model::layout::{BUCKETS, Bucket, STATISTIC_WORDS, TENSORS};
use crate::numerics::pairs;
use crate::protocol::collective::Reduction;

/// The elements of a slice that lie in a bucket, in the flat vector; may be empty.
pub(super) fn elements(slice: &Range<usize>, bucket: &Bucket) -> Range<usize> {
    let all = bucket.parameter_range();
    let start = slice.start.clamp(all.start, all.end);
    start..slice.end.clamp(start, all.end)
}

/// The form of a bucket's words for a slice: sums of its elements, then what every server receives:
/// the statistics, and the maxima.
pub(super) fn reduction(slice: &Range<usize>, bucket: &Bucket) -> Reduction {
    let statistics = if bucket.statistics { STATISTIC_WORDS } else { 0 };
    Reduction::new(elements(slice, bucket).len() + statistics, bucket.max_words())
}

/// A slice's words out of a bucket's, as they travel: with sums of 16 bits packed.
pub(super) fn cut(wire: Wire, slice: &Range<usize>, bucket: &Bucket, words: &[u32]) -> Vec<u32> {
    let all = bucket.parameter_range();
    let elements = elements(slice, bucket);
    let sums = &words[elements.start - all.start..elements.end - all.start];
    let tail = &words[all.len()..];
    match wire {
        Wire::I32 => [sums, tail].concat(),
        Wire::I16 => {
            let mut packed = vec![0; pairs::pair_words(sums.len())];
            pairs::pack(sums, &mut packed);
            packed.extend(tail);
            packed
        }
    }
}

/// The reverse of [`cut`], in the form of [`reduction`]; none if there are more or fewer words than
/// belong there.
pub(super) fn unpack(
    wire: Wire,
    slice: &Range<usize>,
    bucket: &Bucket,
    words: Vec<u32>,
) -> Option<Vec<u32>> {
    let all = reduction(slice, bucket).words();
    match wire {
        Wire::I32 => (words.len() == all).then_some(words),
        Wire::I16 => {
            let sums = elements(slice, bucket).len();
            let (packed, tail) = words.split_at_checked(pairs::pair_words(sums))?;
            let mut unpacked = vec![0; sums];
            pairs::unpack(packed, &mut unpacked);
            unpacked.extend(tail);
            (unpacked.len() == all).then_some(unpacked)
        }
    }
}

/// The parts of tensors that lie in a slice: the tensor's index, its elements' places in the slice,
/// the bucket, and the places in that bucket's words for the slice.
pub(super) fn tensor_parts(
    slice: &Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>, usize, Range<usize>)> {
    let slice = slice.clone();
    BUCKETS.iter().enumerate().flat_map(move |(index, bucket)| {
        let slice = slice.clone();
        let first = elements(&slice, bucket).start;
        (0..bucket.tensors).filter_map(move |k| {
            let tensor = bucket.first_tensor + k;
            let all = TENSORS[tensor].range();
            let (start, end) = (all.start.max(slice.start), all.end.min(slice.end));
            (start < end).then(|| {
                (tensor, start - slice.start..end - slice.start, index, start - first..end - first)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout::PARAMETERS;
    use crate::protocol::star;

    #[test]
    fn every_element_goes_to_one_server_in_its_place() {
        for servers in [1, 2, 3, 7, 40] {
            let mut seen = vec![false; PARAMETERS];
            for server in 0..servers {
                let slice = star::slice(PARAMETERS, servers, server);
                // Words that tell their own place in the flat vector.
                let cuts: Vec<Vec<u32>> = BUCKETS
                    .iter()
                    .map(|bucket| {
                        let first = bucket.parameter_range().start;
                        let words: Vec<u32> =
                            (0..bucket.words()).map(|i| (first + i) as u32).collect();
                        let cut = cut(Wire::I32, &slice, bucket, &words);
                        unpack(Wire::I32, &slice, bucket, cut).unwrap()
                    })
                    .collect();
                for (tensor, places, bucket, words) in tensor_parts(&slice) {
                    for (place, word) in places.zip(words) {
                        let element = cuts[bucket][word] as usize;
                        assert_eq!(element, slice.start + place);
                        assert!(TENSORS[tensor].range().contains(&element));
                        assert!(!std::mem::replace(&mut seen[element], true));
                    }
                }
            }
            assert!(seen.into_iter().all(|seen| seen));
        }
    }

    #[test]
    fn packed_words_are_unpacked_and_others_refused() {
        for servers in [1, 3, 64] {
            for server in 0..servers {
                let slice = star::slice(PARAMETERS, servers, server);
                for bucket in &BUCKETS {
                    // Sums of either sign within 16 bits.
                    let word = |i: usize| ((i % 60_000) as i32 - 30_000) as u32;
                    let words: Vec<u32> = (0..bucket.words()).map(word).collect();
                    let plain = cut(Wire::I32, &slice, bucket, &words);
                    let mut packed = cut(Wire::I16, &slice, bucket, &words);
                    assert!(packed.len() <= plain.len());
                    let unpacked = unpack(Wire::I16, &slice, bucket, packed.clone());
                    assert_eq!(unpacked.as_ref(), Some(&plain));
                    packed.push(0);
                    assert_eq!(unpack(Wire::I16, &slice, bucket, packed), None);
                    assert_eq!(unpack(Wire::I16, &slice, bucket, Vec::new()), None);
                }
            }
        }
    }
}
