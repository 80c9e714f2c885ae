// Everything that generated code includes.
#pragma once

#include "convert.h"
#include "logic.h"
#include "memory.h"
