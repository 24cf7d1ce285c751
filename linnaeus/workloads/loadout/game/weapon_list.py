"""List of the weapons of Splatoon 3. A line is key|number|name|key of the weapon with the same properties, empty unless it is a reskin.

Keys are from the statistics site stat.ink, numbers from the game.
"""

WEAPON_LIST = """\
52gal|50|.52 Gal|
52gal_deco|51|.52 Gal Deco|
96gal|80|.96 Gal|
96gal_deco|81|.96 Gal Deco|
bold|0|Sploosh-o-matic|
bold_neo|1|Neo Sploosh-o-matic|
bottlegeyser|400|Squeezer|
bottlegeyser_foil|401|Foil Squeezer|
heroshooter_replica|45|Hero Shot Replica|sshooter
jetsweeper|90|Jet Squelcher|
jetsweeper_custom|91|Custom Jet Squelcher|
momiji|11|Custom Splattershot Jr.|
nzap85|60|N-ZAP '85|
nzap89|61|N-ZAP '89|
octoshooter_replica|46|Octo Shot Replica|sshooter_collabo
order_shooter_replica|47|Order Shot Replica|sshooter
prime|70|Splattershot Pro|
prime_collabo|71|Forge Splattershot Pro|
promodeler_mg|30|Aerospray MG|
promodeler_rg|31|Aerospray RG|
sharp|20|Splash-o-matic|
sharp_neo|21|Neo Splash-o-matic|
spaceshooter|100|Splattershot Nova|
spaceshooter_collabo|101|Annaki Splattershot Nova|
sshooter|40|Splattershot|
sshooter_collabo|41|Tentatek Splattershot|
wakaba|10|Splattershot Jr.|
clashblaster|230|Clash Blaster|
clashblaster_neo|231|Clash Blaster Neo|
hotblaster|210|Blaster|
hotblaster_custom|211|Custom Blaster|
longblaster|220|Range Blaster|
longblaster_custom|221|Custom Range Blaster|
nova|200|Luna Blaster|
nova_neo|201|Luna Blaster Neo|
order_blaster_replica|205|Order Blaster Replica|nova
rapid|240|Rapid Blaster|
rapid_deco|241|Rapid Blaster Deco|
rapid_elite|250|Rapid Blaster Pro|
rapid_elite_deco|251|Rapid Blaster Pro Deco|
sblast91|261|S-BLAST '91|
sblast92|260|S-BLAST '92|
h3reelgun|310|H-3 Nozzlenose|
h3reelgun_d|311|H-3 Nozzlenose D|
l3reelgun|300|L-3 Nozzlenose|
l3reelgun_d|301|L-3 Nozzlenose D|
dualsweeper|5030|Dualie Squelchers|
dualsweeper_custom|5031|Custom Dualie Squelchers|
gaen_ff|5050|Douser Dualies FF|
gaen_ff_custom|5051|Custom Douser Dualies FF|
kelvin525|5020|Glooga Dualies|
kelvin525_deco|5021|Glooga Dualies Deco|
maneuver|5010|Splat Dualies|
maneuver_collabo|5011|Enperry Splat Dualies|
order_maneuver_replica|5015|Order Dualie Replicas|maneuver
quadhopper_black|5040|Dark Tetra Dualies|
quadhopper_white|5041|Light Tetra Dualies|
sputtery|5000|Dapple Dualies|
sputtery_hue|5001|Dapple Dualies Nouveau|
carbon|1000|Carbon Roller|
carbon_deco|1001|Carbon Roller Deco|
dynamo|1020|Dynamo Roller|
dynamo_tesla|1021|Gold Dynamo Roller|
order_roller_replica|1015|Order Roller Replica|splatroller
splatroller|1010|Splat Roller|
splatroller_collabo|1011|Krak-On Splat Roller|
variableroller|1030|Flingza Roller|
variableroller_foil|1031|Foil Flingza Roller|
wideroller|1040|Big Swig Roller|
wideroller_collabo|1041|Big Swig Roller Express|
fincent|1120|Painbrush|
fincent_hue|1121|Painbrush Nouveau|
hokusai|1110|Octobrush|
hokusai_hue|1111|Octobrush Nouveau|
order_brush_replica|1115|Orderbrush Replica|hokusai
pablo|1100|Inkbrush|
pablo_hue|1101|Inkbrush Nouveau|
dentalwiper_mint|8020|Mint Decavitator|
dentalwiper_sumi|8021|Charcoal Decavitator|
drivewiper|8010|Splatana Wiper|
drivewiper_deco|8011|Splatana Wiper Deco|
jimuwiper|8000|Splatana Stamper|
jimuwiper_hue|8001|Splatana Stamper Nouveau|
order_wiper_replica|8005|Order Splatana Replica|jimuwiper
bamboo14mk1|2050|Bamboozler 14 Mk I|
bamboo14mk2|2051|Bamboozler 14 Mk II|
liter4k|2030|E-liter 4K|
liter4k_custom|2031|Custom E-liter 4K|
liter4k_scope|2040|E-liter 4K Scope|
liter4k_scope_custom|2041|Custom E-liter 4K Scope|
order_charger_replica|2015|Order Charger Replica|splatcharger
rpen_5b|2071|Snipewriter 5B|
rpen_5h|2070|Snipewriter 5H|
soytuber|2060|Goo Tuber|
soytuber_custom|2061|Custom Goo Tuber|
splatcharger|2010|Splat Charger|
splatcharger_collabo|2011|Z+F Splat Charger|
splatscope|2020|Splatterscope|
splatscope_collabo|2021|Z+F Splatterscope|
squiclean_a|2000|Classic Squiffer|
squiclean_b|2001|New Squiffer|
bucketslosher|3000|Slosher|
bucketslosher_deco|3001|Slosher Deco|
explosher|3040|Explosher|
explosher_custom|3041|Custom Explosher|
furo|3030|Bloblobber|
furo_deco|3031|Bloblobber Deco|
hissen|3010|Tri-Slosher|
hissen_hue|3011|Tri-Slosher Nouveau|
moprin|3050|Dread Wringer|
moprin_d|3051|Dread Wringer D|
order_slosher_replica|3005|Order Slosher Replica|bucketslosher
screwslosher|3020|Sloshing Machine|
screwslosher_neo|3021|Sloshing Machine Neo|
barrelspinner|4010|Heavy Splatling|
barrelspinner_deco|4011|Heavy Splatling Deco|
examiner|4050|Heavy Edit Splatling|
examiner_hue|4051|Heavy Edit Splatling Nouveau|
hydra|4020|Hydra Splatling|
hydra_custom|4021|Custom Hydra Splatling|
kugelschreiber|4030|Ballpoint Splatling|
kugelschreiber_hue|4031|Ballpoint Splatling Nouveau|
nautilus47|4040|Nautilus 47|
nautilus79|4041|Nautilus 79|
order_spinner_replica|4015|Order Splatling Replica|barrelspinner
splatspinner|4000|Mini Splatling|
splatspinner_collabo|4001|Zink Mini Splatling|
brella24mk1|6030|Recycled Brella 24 Mk I|
brella24mk2|6031|Recycled Brella 24 Mk II|
campingshelter|6010|Tenta Brella|
campingshelter_sorella|6011|Tenta Sorella Brella|
order_shelter_replica|6005|Order Brella Replica|parashelter
parashelter|6000|Splat Brella|
parashelter_sorella|6001|Sorella Brella|
spygadget|6020|Undercover Brella|
spygadget_sorella|6021|Undercover Sorella Brella|
furuido|7030|Wellstring V|
furuido_custom|7031|Custom Wellstring V|
lact450|7020|REEF-LUX 450|
lact450_deco|7021|REEF-LUX 450 Deco|
order_stringer_replica|7015|Order Stringer Replica|tristringer
tristringer|7010|Tri-Stringer|
tristringer_collabo|7011|Inkline Tri-Stringer|
"""
