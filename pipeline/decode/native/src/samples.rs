//! One data point of any kind: its fields as sent, its attributes still raw.

use crate::envelope::push;
use crate::explicit::Eights;
use crate::exponential::{zigzag, Buckets};
use crate::metrics::PointKind;
use crate::refusal::Scan;
use crate::wire::{fixed64, length, varint, Reader};

/// DataPointFlags bit 0: the series ended here.
const NO_RECORDED_VALUE: u32 = 1;

/// How many messages below the request a data point is.
const LEVEL: usize = 5;

/// The fields that the kinds share, and each one's own; reused from point to point.
#[derive(Default)]
pub struct Sample<'a> {
    pub start: u64,
    pub time: u64,
    pub flags: u32,
    /// The number, or a summary's sum; NaN for histograms.
    pub value: f64,
    pub has_value: bool,
    pub count: u64,
    /// A histogram's sum, NaN = none.
    pub sum: f64,
    pub attributes: Vec<&'a [u8]>,
    pub buckets: Eights<'a>,
    pub bounds: Eights<'a>,
    pub scale: i32,
    pub zero_count: u64,
    pub positive: Buckets,
    pub negative: Buckets,
}

impl<'a> Sample<'a> {
    /// Whether the series ended here.
    pub fn is_end(&self) -> bool {
        self.flags & NO_RECORDED_VALUE != 0
    }

    /// Reads one point.
    #[inline]
    pub fn read(&mut self, kind: PointKind, raw: &'a [u8]) -> Scan<()> {
        (self.start, self.time, self.flags, self.count) = (0, 0, 0, 0);
        self.value = f64::NAN;
        self.has_value = true;
        self.sum = f64::NAN;
        self.attributes.clear();
        match kind {
            PointKind::Gauge | PointKind::Sum => self.number(raw),
            PointKind::Histogram => self.histogram(raw),
            PointKind::ExponentialHistogram => self.exponential(raw),
            PointKind::Summary => self.summary(raw),
        }
    }

    fn number(&mut self, raw: &'a [u8]) -> Scan<()> {
        const START: u32 = fixed64(2);
        const TIME: u32 = fixed64(3);
        const AS_DOUBLE: u32 = fixed64(4);
        const AS_INT: u32 = fixed64(6);
        const ATTRIBUTES: u32 = length(7);
        const FLAGS: u32 = varint(8);
        self.has_value = false;
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                START => self.start = reader.fixed64()?,
                TIME => self.time = reader.fixed64()?,
                AS_DOUBLE => {
                    self.value = f64::from_bits(reader.fixed64()?);
                    self.has_value = true;
                }
                AS_INT => {
                    self.value = reader.fixed64()? as i64 as f64;
                    self.has_value = true;
                }
                ATTRIBUTES => push(&mut self.attributes, reader.bytes()?),
                FLAGS => self.flags = reader.varint()? as u32,
                _ => reader.skip(tag, LEVEL)?,
            }
        }
        Ok(())
    }

    fn histogram(&mut self, raw: &'a [u8]) -> Scan<()> {
        const START: u32 = fixed64(2);
        const TIME: u32 = fixed64(3);
        const COUNT: u32 = fixed64(4);
        const SUM: u32 = fixed64(5);
        const BUCKET: u32 = fixed64(6);
        const BUCKETS: u32 = length(6);
        const BOUND: u32 = fixed64(7);
        const BOUNDS: u32 = length(7);
        const ATTRIBUTES: u32 = length(9);
        const FLAGS: u32 = varint(10);
        self.buckets.clear();
        self.bounds.clear();
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                START => self.start = reader.fixed64()?,
                TIME => self.time = reader.fixed64()?,
                COUNT => self.count = reader.fixed64()?,
                SUM => self.sum = f64::from_bits(reader.fixed64()?),
                BUCKETS => self.buckets.push(reader.bytes()?)?,
                BUCKET => self.buckets.push(reader.take(8)?)?,
                BOUNDS => self.bounds.push(reader.bytes()?)?,
                BOUND => self.bounds.push(reader.take(8)?)?,
                ATTRIBUTES => push(&mut self.attributes, reader.bytes()?),
                FLAGS => self.flags = reader.varint()? as u32,
                _ => reader.skip(tag, LEVEL)?,
            }
        }
        Ok(())
    }

    fn exponential(&mut self, raw: &'a [u8]) -> Scan<()> {
        const ATTRIBUTES: u32 = length(1);
        const START: u32 = fixed64(2);
        const TIME: u32 = fixed64(3);
        const COUNT: u32 = fixed64(4);
        const SUM: u32 = fixed64(5);
        const SCALE: u32 = varint(6);
        const ZERO_COUNT: u32 = fixed64(7);
        const POSITIVE: u32 = length(8);
        const NEGATIVE: u32 = length(9);
        const FLAGS: u32 = varint(10);
        (self.scale, self.zero_count) = (0, 0);
        self.positive.clear();
        self.negative.clear();
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                ATTRIBUTES => push(&mut self.attributes, reader.bytes()?),
                START => self.start = reader.fixed64()?,
                TIME => self.time = reader.fixed64()?,
                COUNT => self.count = reader.fixed64()?,
                SUM => self.sum = f64::from_bits(reader.fixed64()?),
                SCALE => self.scale = zigzag(reader.varint()?),
                ZERO_COUNT => self.zero_count = reader.fixed64()?,
                POSITIVE => self.positive.read(reader.bytes()?, LEVEL + 1)?,
                NEGATIVE => self.negative.read(reader.bytes()?, LEVEL + 1)?,
                FLAGS => self.flags = reader.varint()? as u32,
                _ => reader.skip(tag, LEVEL)?,
            }
        }
        Ok(())
    }

    fn summary(&mut self, raw: &'a [u8]) -> Scan<()> {
        const START: u32 = fixed64(2);
        const TIME: u32 = fixed64(3);
        const COUNT: u32 = fixed64(4);
        const SUM: u32 = fixed64(5);
        const ATTRIBUTES: u32 = length(7);
        const FLAGS: u32 = varint(8);
        self.value = 0.0;
        let mut reader = Reader::new(raw);
        while let Some(tag) = reader.tag()? {
            match tag {
                START => self.start = reader.fixed64()?,
                TIME => self.time = reader.fixed64()?,
                COUNT => self.count = reader.fixed64()?,
                SUM => self.value = f64::from_bits(reader.fixed64()?),
                ATTRIBUTES => push(&mut self.attributes, reader.bytes()?),
                FLAGS => self.flags = reader.varint()? as u32,
                _ => reader.skip(tag, LEVEL)?,
            }
        }
        Ok(())
    }
}
