// SafetensorsReader and SafetensorsFolder read and write weights in Hugging Face's files. Needs no LibTorch.
#pragma once

#include "checkpoint/safetensors_folder.h"
#include "checkpoint/safetensors_reader.h"
