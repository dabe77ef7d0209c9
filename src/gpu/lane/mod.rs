//! The lane kernel set: for adapters that compute on the CPU.
//!
//! A lane is a sample: a tile of 16 samples is a workgroup, and every vector instruction does the
//! same step for 8 or 16 samples at once. A worker uses as many devices as it has cores, each
//! computing in one thread; the tiles of a step are split among them, and their integer sums are
//! added. `shaders/lane/README.md` tells how the kernels are made and why.

mod instance;
pub mod kernels;
mod layout;
mod resources;
mod stage;
mod start;

use std::ops::Range;
use std::time::Duration;

use self::instance::Instance;
use self::layout::{
    CONV_MAXIMA, CONV_SUMS, DENSE_MAXIMA, DENSE_SUMS, LANES, PARAMETER_COLUMNS, PARAMETER_ROWS,
    pack_parameters, unpack_conv_maxima, unpack_conv_sums, unpack_dense_maxima, unpack_dense_sums,
};
pub(super) use self::start::FEATURES;
use self::start::open_devices;
use super::GpuError;
use super::adapter::AdapterReport;
use super::device::Gpu;
use super::engine::{EngineSettings, KernelSet, Sums};
use super::timing::KernelTimes;
use crate::model::layers::CLASSES;
use crate::model::layout::{BUCKETS, DENSE_BUCKET, STATISTIC_WORDS};
use crate::numerics::fixed_point::FixedPoint;

/// Most tiles of a submission on one device: its activations take 25 MB then, and a submission
/// stays far below a second.
const TILES_MAX: usize = 64;

/// Computes on one device for each core.
pub(super) struct LaneSet {
    instances: Vec<Instance>,
    split: Split,
    sums: Sums,
    /// The parameter texture's content.
    texels: Vec<[f32; 4]>,
    dense: Totals,
    conv: Totals,
    /// Loss in fixed point, right answers, samples, bits of the largest |loss|.
    statistics: [u32; 4],
}

/// Sums and maxima over the devices, in the kernels' order.
struct Totals {
    /// Whether nothing was added yet: what the vectors hold is of the last step.
    is_empty: bool,
    sums: Vec<[u32; 4]>,
    maxima: Vec<u32>,
}

impl LaneSet {
    pub fn open(
        gpu: Gpu,
        settings: &EngineSettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<LaneSet, GpuError> {
        let cores = settings.cores.max(1);
        let tiles = settings.samples_per_step.div_ceil(LANES).div_ceil(cores).clamp(1, TILES_MAX);
        let instances = open_devices(gpu, settings, cores, tiles as u32, progress)?;
        Ok(LaneSet {
            split: Split { devices: cores, tiles_max: instances[0].tiles_max() as usize },
            instances,
            sums: settings.sums,
            texels: vec![[0.0; 4]; PARAMETER_ROWS * PARAMETER_COLUMNS],
            dense: Totals::new(DENSE_SUMS, DENSE_MAXIMA),
            conv: Totals::new(CONV_SUMS, CONV_MAXIMA),
            statistics: [0; 4],
        })
    }

    /// Waits for the first half of every device's share of the step and adds it to the totals.
    fn collect_dense(&mut self) -> Result<(), GpuError> {
        let LaneSet { instances, sums, dense, statistics, .. } = self;
        // Each has work again before any result is looked at.
        for instance in &mut *instances {
            instance.continue_step()?;
        }
        for instance in instances {
            instance.finish_dense(|result| {
                dense.add(*sums, result.sums, result.maxima);
                for &[loss, right, size, sample] in result.statistics {
                    statistics[0] = match *sums {
                        Sums::Exact => statistics[0].wrapping_add(loss),
                        Sums::Plain => add_floats(statistics[0], loss),
                    };
                    statistics[1] += right;
                    statistics[2] += sample;
                    statistics[3] = statistics[3].max(size);
                }
            })?;
        }
        Ok(())
    }

    fn collect_conv(&mut self) -> Result<(), GpuError> {
        let LaneSet { instances, sums, conv, .. } = self;
        for instance in instances {
            instance.finish_conv(|part, maxima| conv.add(*sums, part, maxima))?;
        }
        Ok(())
    }
}

impl KernelSet for LaneSet {
    fn name(&self) -> &'static str {
        "lane"
    }

    fn report(&self) -> &AdapterReport {
        self.instances[0].gpu().report()
    }

    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), GpuError> {
        pack_parameters(parameters, &mut self.texels);
        self.dense.clear();
        self.conv.clear();
        self.statistics = [0; 4];
        let mut rest = samples;
        loop {
            let mut done = 0;
            for (instance, share) in self.instances.iter_mut().zip(self.split.shares(rest.len())) {
                done = share.end;
                if !share.is_empty() {
                    instance.begin(&self.texels, &rest[share], fixed_point)?;
                }
            }
            // While they compute, the host is free.
            self.instances.iter_mut().for_each(Instance::prepare);
            rest = &rest[done..];
            if rest.is_empty() {
                return Ok(());
            }
            // More than the devices have room for: this round must be over before the next.
            self.collect_dense()?;
            self.collect_conv()?;
        }
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), GpuError> {
        let bucket = &BUCKETS[bucket];
        let (sums, maxima) = words.split_at_mut(bucket.sum_words());
        maxima.fill(0);
        if *bucket == DENSE_BUCKET {
            self.collect_dense()?;
            let (gradients, statistics) = sums.split_at_mut(bucket.parameter_range().len());
            unpack_dense_sums(&self.dense.sums, gradients);
            statistics.copy_from_slice(&self.statistics[..STATISTIC_WORDS]);
            unpack_dense_maxima(&self.dense.maxima, &mut maxima[..bucket.tensors]);
            maxima[bucket.tensors] = self.statistics[STATISTIC_WORDS];
        } else {
            self.collect_conv()?;
            unpack_conv_sums(&self.conv.sums, sums);
            unpack_conv_maxima(&self.conv.maxima, maxima);
        }
        Ok(())
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        pack_parameters(parameters, &mut self.texels);
        let mut rest = samples;
        while !rest.is_empty() {
            let first = rest.start;
            for (instance, share) in self.instances.iter_mut().zip(self.split.shares(rest.len())) {
                rest.start = first + share.end as u32;
                if !share.is_empty() {
                    let samples = first + share.start as u32..rest.start;
                    instance.begin_logits(&self.texels, samples)?;
                }
            }
            for instance in &mut self.instances {
                instance.finish_logits(|quads, samples| {
                    for sample in 0..samples {
                        let (tile, lane) = (sample / LANES, sample % LANES);
                        let quads: [[u32; 4]; 3] =
                            std::array::from_fn(|q| quads[(tile * 3 + q) * LANES + lane]);
                        let bits = &quads.as_flattened()[..CLASSES];
                        logits.extend(bits.iter().map(|&bits| f32::from_bits(bits)));
                    }
                })?;
            }
        }
        Ok(())
    }

    fn waited(&self) -> Duration {
        self.instances.iter().map(|instance| instance.gpu().waited()).sum()
    }

    fn time_kernels(&mut self) -> Result<KernelTimes, GpuError> {
        self.instances[0].time_stages()
    }

    fn destroy_device(&self) {
        // The last one: the first has work under way when this is found out.
        if let Some(instance) = self.instances.last() {
            instance.gpu().device.destroy();
        }
    }
}

impl Totals {
    fn new(sums: usize, maxima: usize) -> Totals {
        Totals { is_empty: true, sums: vec![[0; 4]; sums], maxima: vec![0; maxima] }
    }

    fn clear(&mut self) {
        self.is_empty = true;
    }

    fn add(&mut self, kind: Sums, sums: &[[u32; 4]], maxima: &[u32]) {
        if std::mem::take(&mut self.is_empty) {
            self.sums.copy_from_slice(sums);
            self.maxima.copy_from_slice(maxima);
            return;
        }
        let totals = self.sums.as_flattened_mut().iter_mut().zip(sums.as_flattened());
        match kind {
            Sums::Exact => totals.for_each(|(total, &sum)| *total = total.wrapping_add(sum)),
            Sums::Plain => totals.for_each(|(total, &sum)| *total = add_floats(*total, sum)),
        }
        for (total, &maximum) in self.maxima.iter_mut().zip(maxima) {
            *total = (*total).max(maximum);
        }
    }
}

fn add_floats(a: u32, b: u32) -> u32 {
    (f32::from_bits(a) + f32::from_bits(b)).to_bits()
}

/// How the samples of a step are cut into shares, one for each device.
#[derive(Clone, Copy, Debug)]
struct Split {
    devices: usize,
    /// Most tiles of a share.
    tiles_max: usize,
}

impl Split {
    /// Consecutive shares of whole tiles, as equal as can be; together as many of the samples as
    /// the devices have room for.
    fn shares(self, samples: usize) -> impl Iterator<Item = Range<usize>> {
        let tiles = samples.div_ceil(LANES).min(self.devices * self.tiles_max);
        let start = move |device: usize| (tiles * device / self.devices * LANES).min(samples);
        (0..self.devices).map(move |device| start(device)..start(device + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_tiles_that_cover_the_samples() {
        for devices in 1..5 {
            let split = Split { devices, tiles_max: 3 };
            for samples in 1..300 {
                let mut end = 0;
                for share in split.shares(samples) {
                    assert_eq!(share.start, end);
                    assert!(share.len() <= 3 * LANES);
                    assert!(share.end % LANES == 0 || share.end == samples);
                    end = share.end;
                }
                assert_eq!(end, samples.min(devices * 3 * LANES));
            }
        }
    }
}
