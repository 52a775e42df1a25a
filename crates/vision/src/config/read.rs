use serde_json::{Map, Value};

use crate::{ConfigError, PatchLayout, PixelScale};

/// Bicubic in the numbering of the Python imaging library.
const BICUBIC: u64 = 3;
/// Far above any checkpoint's, and small enough that no product of them leaves usize.
const LARGEST_COUNT: u64 = 1 << 40;

/// Keys of one settings file, read with messages that name file and key.
pub(super) struct Reader {
    file: &'static str,
    keys: Map<String, Value>,
}

impl Reader {
    /// `nested` is the key that newer files keep the settings under.
    pub fn new(file: &'static str, nested: &'static str, text: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text).map_err(|e| ConfigError::Json { file, reason: e.to_string() })?;
        let Value::Object(mut keys) = value else {
            return Err(ConfigError::Json { file, reason: "the file is not an object".into() });
        };
        if let Some(Value::Object(inner)) = keys.remove(nested) {
            keys = inner;
        }
        Ok(Reader { file, keys })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|v| !v.is_null())
    }

    fn wrong(&self, key: &'static str, got: &Value, expected: &'static str) -> ConfigError {
        ConfigError::Value { file: self.file, key, got: got.to_string(), expected }
    }

    /// Refuses the processors of other families by name; a file without a name is taken at its keys.
    pub fn check_type(&self, key: &'static str, expected: &'static str) -> Result<(), ConfigError> {
        match self.get(key) {
            None => Ok(()),
            Some(Value::String(s)) if s.starts_with("Qwen2VL") || s.starts_with("Qwen3VL") => Ok(()),
            Some(other) => Err(self.wrong(key, other, expected)),
        }
    }

    pub fn flag(&self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A flag of which only one value is supported.
    pub fn flag_is(&self, key: &'static str, wanted: bool) -> Result<(), ConfigError> {
        if self.flag(key, wanted)? == wanted {
            return Ok(());
        }
        let expected =
            if wanted { "true, the other way is not supported" } else { "false, the other way is not supported" };
        Err(self.wrong(key, &Value::Bool(!wanted), expected))
    }

    pub fn count(&self, key: &'static str, default: usize) -> Result<usize, ConfigError> {
        self.get(key).map_or(Ok(default), |v| self.as_count(key, v, LARGEST_COUNT))
    }

    pub fn positive(&self, key: &'static str, default: f64) -> Result<f64, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        number.ok_or_else(|| self.wrong(key, value, "a positive number"))
    }

    fn as_count(&self, key: &'static str, value: &Value, most: u64) -> Result<usize, ConfigError> {
        let n = value.as_u64().filter(|n| (1..=most).contains(n));
        n.map(|n| n as usize).ok_or_else(|| self.wrong(key, value, "a positive whole number in a sensible range"))
    }

    fn required_count(&self, key: &'static str, most: u64) -> Result<usize, ConfigError> {
        let value = self.get(key).ok_or(ConfigError::Missing { file: self.file, key })?;
        self.as_count(key, value, most)
    }

    pub fn layout(&self) -> Result<PatchLayout, ConfigError> {
        self.flag_is("do_resize", true)?;
        self.flag_is("do_convert_rgb", true)?;
        if let Some(value) = self.get("resample").filter(|v| v.as_u64() != Some(BICUBIC)) {
            return Err(self.wrong("resample", value, "3 (bicubic), the only filter supported"));
        }
        Ok(PatchLayout {
            patch_size: self.required_count("patch_size", 256)?,
            merge_size: self.required_count("merge_size", 16)?,
            temporal_patch_size: self.required_count("temporal_patch_size", 16)?,
        })
    }

    pub fn scale(&self) -> Result<PixelScale, ConfigError> {
        // 1/255 is what "rescale" means for 8-bit samples; published files leave it out.
        let factor = self.positive("rescale_factor", 1.0 / 255.0)?;
        let std = self.channels("image_std")?;
        if std.contains(&0.0) {
            return Err(self.wrong("image_std", &self.keys["image_std"], "no zeros"));
        }
        Ok(PixelScale {
            mean: self.channels("image_mean")?,
            std,
            rescale: self.flag("do_rescale", true)?.then_some(factor),
            normalize: self.flag("do_normalize", true)?,
        })
    }

    fn channels(&self, key: &'static str) -> Result<[f32; 3], ConfigError> {
        let value = self.get(key).ok_or(ConfigError::Missing { file: self.file, key })?;
        let numbers: Option<Vec<f32>> =
            value.as_array().and_then(|list| list.iter().map(|v| v.as_f64().map(|n| n as f32)).collect());
        let triple: Option<[f32; 3]> = numbers.and_then(|list| list.try_into().ok());
        let finite = triple.filter(|t| t.iter().all(|v| v.is_finite()));
        finite.ok_or_else(|| self.wrong(key, value, "three numbers, one a channel"))
    }

    /// Fewest and most pixels: `min_pixels` and `max_pixels` where given, else the two `size` keys.
    pub fn limits(&self) -> Result<(usize, usize), ConfigError> {
        Ok((self.limit("min_pixels", "shortest_edge")?, self.limit("max_pixels", "longest_edge")?))
    }

    fn limit(&self, key: &'static str, edge: &'static str) -> Result<usize, ConfigError> {
        let size = self.get("size");
        let in_size = |key| size.and_then(|s| s.get(key)).filter(|v| !v.is_null());
        let value = self.get(key).or_else(|| in_size(key)).or_else(|| in_size(edge));
        self.as_count(edge, value.ok_or(ConfigError::Missing { file: self.file, key: edge })?, LARGEST_COUNT)
    }
}
